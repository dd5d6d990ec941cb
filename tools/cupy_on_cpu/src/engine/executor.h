// Runs a kernel over a grid, one block at a time, every CUDA thread as a fiber.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace standin {

struct Size3 {
    unsigned x, y, z;
};

using KernelEntry = void (*)(void** argument_addresses);

struct Launch {
    std::string kernel_name;
    KernelEntry entry;
    void** arguments;
    Size3 grid, block;
    unsigned dynamic_shared_bytes;
    // The __shared__ variables of the kernel's module; both null if there are none.
    char* static_shared_begin;
    char* static_shared_end;
    int device;
    // 0 runs threads and blocks forward, 1 backward, any other number in an order drawn from it.
    int order;
};

enum class Outcome { finished, assertion, illegal_address, deadlock };

struct LaunchResult {
    Outcome outcome;
    std::string message;  // empty if finished
};

LaunchResult run_grid(const Launch& launch);

// For the checks of loads and stores; all of them belong to the thread that is running.
bool inside_kernel();
bool on_running_stack(uintptr_t address);
bool in_dynamic_shared(uintptr_t address, size_t bytes);
bool in_static_shared(uintptr_t address);
bool is_builtin_variable(uintptr_t address);  // threadIdx and the like
int running_device();
// Ends the launch. Does not return.
void stop_kernel(Outcome outcome, const std::string& what);

}  // namespace standin
