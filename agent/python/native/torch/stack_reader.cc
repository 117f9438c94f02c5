// SPDX-License-Identifier: Apache-2.0
#include "agent/python/native/torch/stack_reader.h"

#include <frameobject.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/python/native/torch/program_error.h"

namespace rankprobe {
namespace {

constexpr size_t kMaxFrames = 1024;
constexpr size_t kMaxStacks = 20000;

std::string Utf8(PyObject* text) {
  Py_ssize_t size = 0;
  const char* data =
      text == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(text, &size);
  if (data == nullptr) {
    ClearOwnError();
    return "";
  }
  return std::string(data, static_cast<size_t>(size));
}

int LastInstruction(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti;  // 3.10 has no function for it
#endif
}

}  // namespace

const StackReader::Line* StackReader::LineOf(PyCodeObject* code,
                                             PyFrameObject* frame) {
  // Cached by instruction, because a line number requires a walk through the
  // line table.
  const auto [it, is_new] = lines_.try_emplace({code, LastInstruction(frame)});
  Line& line = it->second;
  if (!is_new) return &line;
  line.code = PyRef::Share(reinterpret_cast<PyObject*>(code));
  const int number = PyFrame_GetLineNumber(frame);
  const std::string file = Utf8(code->co_filename);
  line.dropped = true;
  const std::string function = Utf8(code->co_name);
  if (absl::StartsWith(file, skipped_directory_)) return &line;
  const PyRef source = PyRef::Steal(PyObject_CallFunction(
      torch_->source_line.get(), "Oi", code->co_filename, number));
  if (!source) {
    // The program's signal handler raised an error; the next call tries again.
    ClearOwnError();
    lines_.erase(it);
    return &unread_;
  }
  if (source.get() == Py_None) return &line;
  line.dropped = false;
  line.text = absl::StrCat("File ", file, ", line ", number, ", in ", function,
                           ", \n ", Utf8(source.get()));
  return &line;
}

const StackReader::Stack& StackReader::Read() {
  key_.clear();
  PyRef frame = PyRef::Steal(
      reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  while (frame && key_.size() < kMaxFrames) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.get());
    PyCodeObject* code = PyFrame_GetCode(raw);
    const Line* line = LineOf(code, raw);
    Py_DECREF(code);
    if (!line->dropped) key_.push_back(line);
    frame = PyRef::Steal(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  const auto [it, is_new] = stacks_.try_emplace(key_);
  if (is_new) {
    it->second.number = ++last_number_;
    for (const Line* line : key_) it->second.frames.push_back(line->text);
  }
  return it->second;
}

void StackReader::Clear() {
  if (stacks_.size() < kMaxStacks && lines_.size() < kMaxStacks) return;
  stacks_.clear();
  lines_.clear();
}

}  // namespace rankprobe
