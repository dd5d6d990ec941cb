// What a launch may ask for: the limits of a current NVIDIA GPU.
#pragma once

#include <string>

#include "executor.h"

namespace standin {

constexpr unsigned kMaxThreadsPerBlock = 1024;
constexpr unsigned kSharedBytesPerBlock = 48 * 1024;
constexpr unsigned kSharedBytesPerBlockOptIn = 163 * 1024;

// Empty, or a sentence about the limit that a launch exceeds. Static shared memory is not among
// them: as with NVIDIA's, the compiler refuses too much of it.
std::string exceeded_limit(const Launch& launch, unsigned max_dynamic_shared, int launch_bound);

}  // namespace standin
