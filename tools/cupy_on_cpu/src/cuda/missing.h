// CUDA functions that CuPy can call and the stand-in does not have.
#pragma once

#include <string>

namespace standin {

// The name of the missing function that was called last; empty if none was.
std::string last_missing_function();

}  // namespace standin

// Called by the generated stubs (builder/stubs.py): says the name, and returns the status.
extern "C" int standin_missing_status(const char* name, int status);
// The same for C++ functions, which report by an exception.
extern "C" void standin_missing_throw(const char* name);
