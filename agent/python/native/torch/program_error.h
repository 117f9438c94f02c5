// SPDX-License-Identifier: Apache-2.0
// Python errors that our code runs into: those of its own are cleared, those of
// the program reach it.
//
// A signal handler of the program runs whenever Python code does, ours too, and
// what it raises (Ctrl-C, a time limit, an end that was asked for) is no fault
// of a call of ours. Such an error is raised again in the main thread as soon
// as our code is done with what it was at, as if the signal had come then. So
// is what a computation of the program's came to that our code waited for
// (rankprobe._program_error.raise_programs).
//
// Threads: with the GIL held. Failure: none; without memory, or with 32 of
// them waiting, one is lost.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PROGRAM_ERROR_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PROGRAM_ERROR_H_

#include <Python.h>

namespace rankprobe {

// In place of PyErr_Clear, wherever Python code may have run.
void ClearOwnError();

// If `error`, which was caught, is of the program: raises it again later, and
// true.
bool RaiseLaterIfPrograms(PyObject* error);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PROGRAM_ERROR_H_
