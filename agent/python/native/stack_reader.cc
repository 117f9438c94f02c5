#include "agent/python/native/stack_reader.h"

#include <frameobject.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxFrames = 1024;
constexpr size_t kMaxStacks = 20000;

std::string Utf8(PyObject* text) {
  Py_ssize_t size = 0;
  const char* data =
      text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, &size);
  if (data == nullptr) {
    PyErr_Clear();
    return "";
  }
  return std::string(data, static_cast<size_t>(size));
}

}  // namespace

const StackReader::Line* StackReader::LineOf(PyCodeObject* code, int number) {
  const auto [it, is_new] = lines_.try_emplace({code, number});
  Line& line = it->second;
  if (!is_new) return &line;
  line.code = PyRef::Share(reinterpret_cast<PyObject*>(code));
  const std::string file = Utf8(code->co_filename);
  line.dropped = true;
  if (absl::StartsWith(file, skipped_directory_)) return &line;
  const PyRef source = PyRef::Steal(PyObject_CallFunction(
      torch_->source_line.get(), "Oi", code->co_filename, number));
  if (!source || source.get() == Py_None) {
    PyErr_Clear();
    return &line;
  }
  line.dropped = false;
  line.text = absl::StrCat("File ", file, ", line ", number, ", in ",
                           Utf8(code->co_name), ", \n ", Utf8(source.get()));
  return &line;
}

const std::vector<std::string>& StackReader::Read() {
  key_.clear();
  PyRef frame = PyRef::Steal(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame && key_.size() < kMaxFrames) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.get());
    PyCodeObject* code = PyFrame_GetCode(raw);
    const Line* line = LineOf(code, PyFrame_GetLineNumber(raw));
    Py_DECREF(code);
    if (!line->dropped) key_.push_back(line);
    frame = PyRef::Steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  const auto [it, is_new] = stacks_.try_emplace(key_);
  if (is_new) {
    for (const Line* line : key_) it->second.push_back(line->text);
  }
  return it->second;
}

void StackReader::Clear() {
  if (stacks_.size() < kMaxStacks && lines_.size() < kMaxStacks) return;
  stacks_.clear();
  lines_.clear();
}

}  // namespace rankprobe
