// What has to be read from, or changed in, the text of a CUDA source before g++ can compile it.
#pragma once

#include <string>
#include <vector>

namespace standin {

struct KernelDeclaration {
    std::string name;
    std::string launch_bound;  // the arguments of __launch_bounds__, empty without
};

// Keeps line numbers and string literals.
std::string without_comments(const std::string& source);

// The __global__ functions that are no templates, in a text without comments.
std::vector<KernelDeclaration> find_kernels(const std::string& text);

// True if a macro of the text makes __global__ functions, so that find_kernels cannot see them.
bool defines_kernels_by_macro(const std::string& text);

// "extern __shared__ T name[];" becomes a pointer to the launch's dynamic shared memory.
std::string with_dynamic_shared_pointers(const std::string& source);

// CuPy's own (arg)partition kernels exchange data between lanes without __syncwarp: they rely on
// warps that run in step, which fibers do not. Adds the missing calls.
std::string with_lockstep_syncs(const std::string& source);

}  // namespace standin
