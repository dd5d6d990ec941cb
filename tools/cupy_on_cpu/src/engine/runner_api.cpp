// The C interface that kernel_runner.py calls by ctypes.
#include <cstdio>
#include <cstring>
#include <sstream>

#include "compiler.h"
#include "executor.h"
#include "launch_limits.h"
#include "memory_map.h"

namespace {

void copy_text(const std::string& text, char* to, size_t capacity) {
    snprintf(to, capacity, "%s", text.c_str());
}

}  // namespace

extern "C" {

// Returns 1 if it compiled. options: one per line. The messages of g++ go to log.
int standin_runner_compile(const char* source, const char* file_name, const char* options,
                           int check_bounds, const char* device_folder, const char* library_folder,
                           const char* output, char* log, size_t log_capacity) {
    const standin::Toolchain toolchain{
        {device_folder}, library_folder, "standin_engine", false, false};
    standin::CompileRequest request;
    request.source = source;
    request.file_name = file_name;
    request.standard = "c++17";
    request.check_bounds = check_bounds != 0;
    request.output = output;
    std::istringstream lines(options);
    for (std::string line; std::getline(lines, line);)
        if (!line.empty()) request.options.push_back(line);
    const auto result = standin::compile_kernels(toolchain, request);
    copy_text(result.log, log, log_capacity);
    return result.succeeded;
}

void* standin_runner_allocate(size_t bytes) {
    return standin::allocate_region(bytes, standin::MemoryKind::device, 0);
}

void standin_runner_free(void* address) { standin::free_region(address); }

// Returns 0 if the kernel finished, 1 if the launch was refused, 2 if the kernel was stopped or
// wrote outside of its arrays; the reason goes to message.
int standin_runner_launch(const char* name, void* entry, const unsigned* grid,
                          const unsigned* block, unsigned dynamic_shared_bytes, char* shared_begin,
                          char* shared_end, int launch_bound, void** arguments, int order,
                          char* message, size_t message_capacity) {
    standin::Launch launch{name,
                           reinterpret_cast<standin::KernelEntry>(entry),
                           arguments,
                           {grid[0], grid[1], grid[2]},
                           {block[0], block[1], block[2]},
                           dynamic_shared_bytes,
                           shared_begin,
                           shared_end,
                           0,
                           order};
    const std::string limit =
        standin::exceeded_limit(launch, standin::kSharedBytesPerBlockOptIn, launch_bound);
    if (!limit.empty()) {
        copy_text(limit, message, message_capacity);
        return 1;
    }
    const standin::LaunchResult result = standin::run_grid(launch);
    const std::string problem = result.message.empty() ? standin::find_damage() : result.message;
    copy_text(problem, message, message_capacity);
    return problem.empty() ? 0 : 2;
}
}
