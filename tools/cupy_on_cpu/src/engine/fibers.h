// Fibers: stacks that one OS thread switches between by hand. Each CUDA thread that has to wait for
// another one needs a stack of its own.
#pragma once

#include <cstddef>

namespace standin {

struct Fiber {
    void* stack_pointer;
    char* stack_begin;  // the lowest usable address
    char* stack_end;
};

// A fiber that will run body() from its start; body must never return.
Fiber* take_fiber(void (*body)());
// For a fiber whose body is ready to be resumed for another piece of work.
void give_back_fiber(Fiber* fiber);
// After a failure: forgets what every fiber was doing.
void restart_all_fibers(void (*body)());

// Saves the running stack in *save and continues at load.
extern "C" void standin_switch_stack(void** save, void* load);

}  // namespace standin
