// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/slot_redirect.h"

#include <algorithm>
#include <cstring>

#include "agent/python/native/torch/program_error.h"
#include "agent/python/native/torch/py_read.h"

namespace rankprobe {
namespace {

PyWrapperDescrObject* AsWrapper(PyObject* function) {
  return reinterpret_cast<PyWrapperDescrObject*>(function);
}

// Replaces the slot `from` of `type` and of all its subclasses that have it.
void Exchange(PyTypeObject* type, objobjargproc from, objobjargproc to) {
  PyMappingMethods* const methods = type->tp_as_mapping;
  if (methods != nullptr && methods->mp_ass_subscript == from)
    methods->mp_ass_subscript = to;
  auto* const classes = static_cast<PyObject*>(type->tp_subclasses);
  if (classes == nullptr) return;
  PyObject* weak = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(classes, &at, nullptr, &weak) != 0;) {
    const PyRef made = Referent(weak);
    if (made) Exchange(reinterpret_cast<PyTypeObject*>(made.get()), from, to);
  }
}

}  // namespace

SlotRedirect* SlotRedirect::one_ = nullptr;

SlotRedirect* SlotRedirect::Of(PyObject* function) {
  if (Py_TYPE(function) != &PyWrapperDescr_Type) return nullptr;
  if (one_ != nullptr)
    return one_->function_.get() == function ? one_ : nullptr;
  PyWrapperDescrObject* const wrapper = AsWrapper(function);
  PyTypeObject* const type = wrapper->d_common.d_type;
  if (std::strcmp(wrapper->d_base->name, "__setitem__") != 0 ||
      type->tp_as_mapping == nullptr || wrapper->d_wrapped == nullptr ||
      reinterpret_cast<void*>(type->tp_as_mapping->mp_ass_subscript) !=
          wrapper->d_wrapped ||
      // The interpreter assigns to lists and dicts without using the slot.
      PyType_FastSubclass(type,
                          Py_TPFLAGS_LIST_SUBCLASS | Py_TPFLAGS_DICT_SUBCLASS))
    return nullptr;
  PyRef original = PyRef::Steal(
      PyDescr_NewWrapper(type, wrapper->d_base, wrapper->d_wrapped));
  if (!original) {
    ClearOwnError();
    return nullptr;
  }
  one_ = new SlotRedirect(function, std::move(original),
                          type->tp_as_mapping->mp_ass_subscript);
  return one_;
}

int SlotRedirect::Assign(PyObject* self, PyObject* key, PyObject* value) {
  // A null value deletes the item, which is __delitem__.
  if (value == nullptr || one_->targets_.empty())
    return one_->own_(self, key, value);
  const PyRef target = one_->targets_.back();
  PyObject* const arguments[] = {self, key, value};
  const PyRef result =
      PyRef::Steal(PyObject_Vectorcall(target.get(), arguments, 3, nullptr));
  return result ? 0 : -1;
}

void SlotRedirect::Set(objobjargproc to) const {
  PyWrapperDescrObject* const wrapper = AsWrapper(function_.get());
  const auto now = reinterpret_cast<objobjargproc>(wrapper->d_wrapped);
  wrapper->d_wrapped = reinterpret_cast<void*>(to);
  Exchange(wrapper->d_common.d_type, now, to);
}

void SlotRedirect::Put(PyObject* target) {
  targets_.push_back(PyRef::Share(target));
  if (targets_.size() == 1) Set(&SlotRedirect::Assign);
}

void SlotRedirect::Take(PyObject* target) {
  const auto at =
      std::find_if(targets_.rbegin(), targets_.rend(),
                   [&](const PyRef& known) { return known.get() == target; });
  if (at == targets_.rend()) return;
  // Its destructor may run Python code, which must not see the list while it
  // changes.
  const PyRef taken = std::move(*at);
  targets_.erase(std::next(at).base());
  if (targets_.empty()) Set(own_);
}

}  // namespace rankprobe
