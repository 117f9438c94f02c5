// SPDX-License-Identifier: Apache-2.0
// Python errors that occur in rankprobe's code: its own are cleared, those of
// the program are passed to the program.
//
// A signal handler of the program can run during any Python code, also
// rankprobe's, and what it raises (Ctrl-C, a time limit, a requested end) is
// not an error of rankprobe. Such an error is raised again in the main thread
// as soon as rankprobe's code has finished its work, as if the signal had
// arrived then. The same holds for an error of a computation of the program
// that rankprobe waited for (rankprobe._program_error.raise_programs).
//
// Threads: the GIL is held. Failure: none; if memory is exhausted or 32 errors
// are waiting, one is lost.
#ifndef RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PROGRAM_ERROR_H_
#define RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PROGRAM_ERROR_H_

#include <Python.h>

namespace rankprobe {

// Use this instead of PyErr_Clear wherever Python code may have run.
void ClearOwnError();

// If `error`, which was caught, belongs to the program: raises it again later,
// and returns true.
bool RaiseLaterIfPrograms(PyObject* error);

}  // namespace rankprobe

#endif  // RANKPROBE_AGENT_PYTHON_NATIVE_TORCH_PROGRAM_ERROR_H_
