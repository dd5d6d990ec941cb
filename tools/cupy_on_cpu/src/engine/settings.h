// Settings that come from environment variables.
#pragma once

#include <cstddef>
#include <string>

namespace standin {

int integer_setting(const char* name, int fallback);
std::string text_setting(const char* name);
// A number of bytes, with an optional ending K, M or G (powers of 1024).
size_t bytes_setting(const char* name, size_t fallback);

// STANDIN_CHECK_BOUNDS=1: the compiler adds a check to every load and store of a kernel.
bool check_bounds_setting();

}  // namespace standin
