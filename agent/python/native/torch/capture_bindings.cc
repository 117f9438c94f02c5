// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/capture_bindings.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "agent/python/native/session/plan_dict.h"
#include "agent/python/native/torch/api_object.h"
#include "agent/python/native/torch/call_redirect.h"
#include "agent/python/native/torch/capture.h"
#include "agent/python/native/torch/function_redirect.h"
#include "agent/python/native/torch/hooked_modules.h"
#include "agent/python/native/torch/module_forwards.h"
#include "agent/python/native/torch/module_gradients.h"
#include "agent/python/native/torch/module_hooks.h"
#include "agent/python/native/torch/node_hook.h"
#include "agent/python/native/torch/place_redirect.h"
#include "agent/python/native/torch/program_error.h"
#include "agent/python/native/torch/redirected_calls.h"
#include "agent/python/native/torch/slot_redirect.h"

namespace py = pybind11;

namespace rankprobe {
namespace {

py::object Made(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

py::object MakeApi(const py::object& function, std::shared_ptr<Capture> capture,
                   const std::string& prefix, const std::string& op,
                   const py::dict& traits,
                   const std::optional<py::function>& redirected) {
  ApiSpec spec;
  spec.prefix = prefix;
  spec.op = op;
  for (const auto& [key, value] : traits) {
    const std::string name = py::str(key).cast<std::string>();
    if (name == "distributed") spec.distributed = value.cast<bool>();
    if (name == "in_place") spec.in_place = value.cast<bool>();
    if (name == "writes_arguments") spec.writes_arguments = value.cast<bool>();
    if (name == "dropout") spec.dropout = value.cast<bool>();
    if (name == "gives_written") spec.gives_written = value.cast<bool>();
    if (name == "returns_address") spec.returns_address = value.cast<bool>();
    for (auto [set, of] : {std::pair{&spec.ignored, "ignored"},
                           {&spec.written, "written"},
                           {&spec.addresses, "addresses"},
                           {&spec.caches, "caches"}}) {
      if (name != of) continue;
      const auto [positions, names] =
          value.cast<std::pair<std::vector<int>, std::vector<std::string>>>();
      *set = {positions, names};
    }
    if (name == "ignored_outputs")
      spec.ignored_outputs = value.cast<std::vector<int>>();
  }
  return Made(NewApiObject(function.ptr(), std::move(capture), std::move(spec),
                           redirected ? redirected->ptr() : nullptr));
}

// Binds a method of one of Capture's roles as a method of Capture.
template <typename Role, typename Result, typename... Args>
auto Of(Role& (Capture::*role)(), Result (Role::*method)(Args...)) {
  return [role, method](Capture& capture, Args... args) -> Result {
    return ((capture.*role)().*method)(std::forward<Args>(args)...);
  };
}

// Binds a method of one of the Recorder's roles as a method of Capture. It does
// nothing once the recorder is closed.
template <typename Role, typename... Args>
auto Told(Role& (Recorder::*role)(), void (Role::*method)(Args...)) {
  return [role, method](const Capture& capture, Args... args) {
    const std::shared_ptr<Recorder> recorder = capture.recorder();
    if (recorder != nullptr) ((*recorder.*role)().*method)(args...);
  };
}

template <bool (StepReports::*kAsk)() const>
bool Asks(const Capture& capture) {
  return capture.recorder() != nullptr &&
         (capture.recorder()->reports().*kAsk)();
}

}  // namespace

void RegisterCapture(py::module_& m) {
  if (!InitApiTypes(m.ptr()) || !InitNodeHook() || !InitModuleHooks())
    throw py::error_already_set();
  py::class_<ModuleCall>(m, "ModuleCall", "One module call between its hooks.")
      .def_property_readonly(
          "name", [](const ModuleCall& c) { return c.call.forward_entry; })
      .def_property_readonly("kept",
                             [](const ModuleCall& c) { return c.call.kept; });
  py::class_<ModuleGradients>(m, "ModuleGradients",
                              "Takes the gradients of one module call.")
      .def(
          "outputs",
          [](ModuleGradients& gradients, const py::tuple& outputs) {
            return gradients.Outputs(TensorsOfTuple(outputs.ptr()));
          },
          py::arg("outputs"));
  py::class_<ModuleForwards, std::shared_ptr<ModuleForwards>>(
      m, "ModuleForwards", "Forwards of hooked modules that are open.")
      .def(
          py::init([](std::shared_ptr<Capture> capture,
                      const py::object& wanting, const py::object& parameters) {
            return std::make_shared<ModuleForwards>(
                std::move(capture), PyRef::Share(wanting.ptr()),
                PyRef::Share(parameters.ptr()));
          }),
          py::arg("capture"), py::arg("wanting"), py::arg("parameters"))
      .def_property("backward", &ModuleForwards::backward,
                    &ModuleForwards::SetBackward)
      .def_property("parameters_grad", &ModuleForwards::parameters_grad,
                    &ModuleForwards::SetParametersGrad)
      .def("forget_watched", &ModuleForwards::ForgetWatched)
      .def(
          "module_begin",
          [](const std::shared_ptr<ModuleForwards>& forwards,
             const std::string& name,
             bool full) { return Made(NewModuleBegin(forwards, name, full)); },
          py::arg("name"), py::arg("full"))
      .def("module_end",
           [](const std::shared_ptr<ModuleForwards>& forwards) {
             return Made(NewModuleEnd(forwards));
           })
      .def(
          "parameter_hook",
          [](const std::shared_ptr<ModuleForwards>& forwards,
             const std::string& module, const std::string& name,
             const py::object& parameter, bool of_node,
             const py::object& report) {
            return Made(NewParameterHook(forwards, module, name,
                                         parameter.ptr(), of_node,
                                         PyRef::Share(report.ptr())));
          },
          py::arg("module"), py::arg("name"), py::arg("parameter"),
          py::arg("of_node"), py::arg("report"))
      .def("push", &ModuleForwards::Push, py::arg("module"), py::arg("call"))
      .def(
          "end",
          [](ModuleForwards& forwards, const py::object& module,
             const py::object& output) {
            return forwards.End(module.ptr(), output.ptr());
          },
          py::arg("module"), py::arg("output"))
      .def("abandon", &ModuleForwards::Abandon, py::arg("module"),
           py::arg("stopped"))
      .def("clear", &ModuleForwards::Clear);
  py::class_<SavedValue>(m, "SavedValue", "A value of save().");
  py::class_<Capture, std::shared_ptr<Capture>>(
      m, "Capture", "The recorder that hooks of PyTorch use.")
      .def_property_readonly("active", &Capture::Active)
      .def_property("enabled", &Capture::enabled, &Capture::SetEnabled)
      .def("set_apis_enabled", &Capture::SetApisEnabled, py::arg("enabled"))
      .def("set_modules_forced",
           Told(&Recorder::calls, &CallRecorder::SetModulesForced),
           py::arg("forced"))
      .def("enter_quiet", Of(&Capture::quiet, &QuietGuards::Enter))
      .def("leave_quiet", Of(&Capture::quiet, &QuietGuards::Leave))
      .def(
          "begin_module",
          [](Capture& capture, const std::string& name, const py::tuple& args,
             const py::object& kwargs) {
            return capture.modules().Begin(name, args.ptr(), kwargs.ptr());
          },
          py::arg("name"), py::arg("args"), py::arg("kwargs") = py::none())
      .def(
          "begin_compiled_module",
          [](Capture& capture, const std::string& name, const py::tuple& args,
             const py::object& kwargs, const std::vector<std::string>& frames) {
            return capture.modules().Begin(name, args.ptr(), kwargs.ptr(),
                                           &frames);
          },
          py::arg("name"), py::arg("args"), py::arg("kwargs"),
          py::arg("frames"))
      .def("begin_compiled_backward",
           Of(&Capture::modules, &ModuleCapture::BeginBackward),
           py::arg("module"))
      .def("compiled_backward", Of(&Capture::modules, &ModuleCapture::Backward),
           py::arg("module"), py::arg("grad_inputs"), py::arg("grad_outputs"))
      .def(
          "end_module",
          [](Capture& capture, const ModuleCall& module,
             const py::object& output, const py::dict& parameters) {
            capture.modules().End(module, output.ptr(),
                                  PyRef::Share(parameters.ptr()));
          },
          py::arg("module"), py::arg("output"), py::arg("parameters"))
      .def("abandon_module", Of(&Capture::modules, &ModuleCapture::Abandon),
           py::arg("module"))
      .def("reset_modules", Told(&Recorder::calls, &CallRecorder::ResetModules))
      .def(
          "module_gradients",
          [](const std::shared_ptr<Capture>& capture, const ModuleCall& module,
             const py::tuple& inputs) {
            return std::make_unique<ModuleGradients>(
                capture, module, TensorsOfTuple(inputs.ptr()));
          },
          py::arg("module"), py::arg("inputs"))
      .def(
          "parameter_gradient",
          [](Capture& capture, const std::string& module,
             const std::string& name, const py::object& gradient) {
            capture.modules().ParameterGradient(module, name, gradient.ptr());
          },
          py::arg("module"), py::arg("name"), py::arg("gradient"))
      .def(
          "push_scope",
          [](const Capture& capture, const std::string& name) {
            if (capture.Active()) capture.recorder()->calls().PushScope(name);
          },
          py::arg("name"))
      .def(
          "pop_scope",
          [](const Capture& capture, const std::string& name) {
            if (capture.recorder() != nullptr)
              capture.recorder()->calls().PopScope(name);
          },
          py::arg("name"))
      .def("work_done", Of(&Capture::apis, &ApiCapture::WorkDone),
           py::arg("work"))
      .def("save", Of(&Capture::values, &ValueCapture::Save), py::arg("name"),
           py::arg("value"), py::arg("skeleton"))
      .def("save_gradient", Of(&Capture::values, &ValueCapture::SaveGradient),
           py::arg("saved"), py::arg("path"), py::arg("gradient"))
      .def("save_monitored", Of(&Capture::values, &ValueCapture::SaveMonitored),
           py::arg("name"), py::arg("values"))
      .def_property_readonly("wants_loss", &Asks<&StepReports::WantsLoss>)
      .def("report_loss", Told(&Recorder::reports, &StepReports::ReportLoss),
           py::arg("loss"))
      .def_property_readonly("wants_replica", &Asks<&StepReports::WantsReplica>)
      .def("report_replica", Of(&Capture::values, &ValueCapture::ReportReplica),
           py::arg("tensors"))
      .def_property_readonly("wants_facts", &Asks<&StepReports::WantsFacts>)
      .def("digest", Of(&Capture::values, &ValueCapture::Digest),
           py::arg("tensor"), py::arg("limit_bytes"))
      .def("record_facts", Of(&Capture::values, &ValueCapture::RecordFacts),
           py::arg("facts"))
      .def_property_readonly("wants_tokens", &Asks<&StepReports::WantsTokens>)
      .def("report_tokens", Of(&Capture::values, &ValueCapture::ReportTokens),
           py::arg("tokens"))
      .def("inject_faults", &Capture::InjectFaults, py::arg("count"))
      .def("report_fault", &Capture::ReportFault, py::arg("what"))
      .def_property_readonly("seen", &Capture::seen)
      .def_property_readonly("matched", &Capture::matched)
      .def_property_readonly("faults", &Capture::faults);
  m.def(
      "all_hooked",
      [](const py::list& roots, const py::dict& hooked,
         const py::function& skipped) {
        const int all = AllHooked(roots.ptr(), hooked.ptr(), skipped.ptr());
        if (all < 0) throw py::error_already_set();
        return all != 0;
      },
      py::arg("roots"), py::arg("hooked"), py::arg("skipped"),
      "Whether each module below `roots` is in `hooked`, weak references by "
      "id, or skipped(module) is true.");
  py::class_<Redirect, std::shared_ptr<Redirect>>(
      m, "Redirect", "Redirects the calls of a function.")
      .def_property_readonly(
          "original",
          [](const Redirect& redirect) {
            return py::reinterpret_borrow<py::object>(redirect.original());
          })
      .def(
          "put",
          [](Redirect& redirect, const py::object& target) {
            redirect.Put(target.ptr());
          },
          py::arg("target"))
      .def(
          "take",
          [](Redirect& redirect, const py::object& target) {
            redirect.Take(target.ptr());
          },
          py::arg("target"));
  py::class_<RedirectedCalls>(m, "RedirectedCalls",
                              "Redirects that are put and taken together.")
      .def(py::init<>())
      .def(
          "add",
          [](RedirectedCalls& calls, std::shared_ptr<Redirect> redirect,
             const py::object& target) {
            calls.Add(std::move(redirect), target.ptr());
          },
          py::arg("redirect"), py::arg("target"))
      .def("put", &RedirectedCalls::Put)
      .def("take", &RedirectedCalls::Take);
  m.def(
      "function_redirect",
      [](const py::function& function, const py::function& original,
         const py::function& make_code, const py::str& file) {
        return std::shared_ptr<Redirect>(std::make_shared<FunctionRedirect>(
            PyRef::Share(function.ptr()), PyRef::Share(original.ptr()),
            PyRef::Share(make_code.ptr()), PyRef::Share(file.ptr())));
      },
      py::arg("function"), py::arg("original"), py::arg("make_code"),
      py::arg("file"),
      "Redirects a Python function. original: a function with the same code, "
      "which is never redirected. make_code(target, own) returns code that "
      "calls `target`, for a function whose code is `own`; `file` is the "
      "co_filename of all code that it returns.");
  m.def(
      "call_redirect",
      [](const py::object& function) {
        // The redirect is never freed.
        return std::shared_ptr<Redirect>(CallRedirect::Of(function.ptr()),
                                         [](Redirect*) {});
      },
      py::arg("function"), "None if it is not a C function.");
  m.def(
      "slot_redirect",
      [](const py::object& function) {
        return std::shared_ptr<Redirect>(SlotRedirect::Of(function.ptr()),
                                         [](Redirect*) {});
      },
      py::arg("function"), "None if it is not `Tensor.__setitem__`.");
  m.def(
      "place_redirect",
      [](const py::object& host, const py::str& name,
         const py::object& original) {
        return std::shared_ptr<Redirect>(std::make_shared<PlaceRedirect>(
            PyRef::Share(host.ptr()), PyRef::Share(name.ptr()),
            PyRef::Share(original.ptr())));
      },
      py::arg("host"), py::arg("name"), py::arg("original"),
      "Sets host.name to the target.");
  m.def("api", &MakeApi, py::arg("function"), py::arg("capture"),
        py::arg("prefix"), py::arg("op"), py::arg("traits") = py::dict(),
        py::arg("redirected") = std::nullopt,
        "Stands in for `function`: records the outermost call of a thread.");
  m.def(
      "traced_module_call",
      [](const py::object& callback) {
        ModuleCall call;
        call.traced = PyRef::Share(callback.ptr());
        return call;
      },
      py::arg("callback"),
      "A call that a compiler traces: its gradients go to `callback`.");
  m.def(
      "raise_later_if_programs",
      [](const py::object& error) { return RaiseLaterIfPrograms(error.ptr()); },
      py::arg("error"));
  m.def("parse_config", &ParseConfigDict, py::arg("config_json"));
  m.def("check_config_file", &CheckConfigFile, py::arg("file"),
        py::arg("text"));
  m.def("parse_api_list", &ParseApiListDict, py::arg("text"));
}

}  // namespace rankprobe
