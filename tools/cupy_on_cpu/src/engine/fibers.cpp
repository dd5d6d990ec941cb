#include "fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <vector>

#ifndef __x86_64__
#error "the stack switch below is written for x86-64"
#endif

// The registers that the x86-64 System V ABI asks a callee to preserve, then the stack itself.
asm(R"(
.text
.globl standin_switch_stack
.type standin_switch_stack,@function
standin_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size standin_switch_stack,.-standin_switch_stack
)");

namespace standin {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kPageBytes = 4096;
constexpr int kSavedRegisters = 6;
constexpr size_t kLineBytes = 64, kLines = 512;

std::vector<Fiber*> all_fibers;
std::vector<Fiber*> free_fibers;

void point_at(Fiber* fiber, void (*body)()) {
    void** top = reinterpret_cast<void**>(fiber->stack_end);
    *--top = nullptr;  // body() finds the stack aligned as after a call
    *--top = reinterpret_cast<void*>(body);
    for (int i = 0; i < kSavedRegisters; i++)
        *--top = nullptr;
    fiber->stack_pointer = top;
}

Fiber* make_fiber() {
    void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char* begin = static_cast<char*>(memory);
    // A stack that overflows stops the process here instead of writing over its neighbor.
    mprotect(begin, kPageBytes, PROT_NONE);
    // Stacks that began at the same place of a page would share a few lines of the processor's
    // caches, which made every switch a miss.
    const size_t shift = all_fibers.size() * 5 % kLines * kLineBytes;
    Fiber* fiber = new Fiber{nullptr, begin + kPageBytes, begin + kStackBytes - shift};
    all_fibers.push_back(fiber);
    return fiber;
}

}  // namespace

Fiber* take_fiber(void (*body)()) {
    if (free_fibers.empty()) {
        Fiber* fiber = make_fiber();
        point_at(fiber, body);
        return fiber;
    }
    Fiber* fiber = free_fibers.back();
    free_fibers.pop_back();
    return fiber;
}

void give_back_fiber(Fiber* fiber) { free_fibers.push_back(fiber); }

void restart_all_fibers(void (*body)()) {
    free_fibers = all_fibers;
    for (Fiber* fiber : all_fibers)
        point_at(fiber, body);
}

}  // namespace standin
