// Atomic functions, with exactly CUDA's overloads, so that a missing overload is a compile error
// here too. One OS thread runs all CUDA threads, so a plain read-modify-write is atomic.
#pragma once

// A typedef, so that "unsigned long long*" matches and "unsigned long*" does not, as in CUDA.
typedef unsigned long long standin_ull;
typedef long long standin_ll;

#define STANDIN_ATOMIC(name, Type, new_value)                                            \
    inline Type name(Type* address, Type value) {                                        \
        Type old = *address;                                                             \
        *address = (new_value);                                                          \
        return old;                                                                      \
    }                                                                                    \
    inline Type name##_block(Type* address, Type value) { return name(address, value); } \
    inline Type name##_system(Type* address, Type value) { return name(address, value); }

#define STANDIN_ATOMIC_INTEGERS(name, new_value)  \
    STANDIN_ATOMIC(name, int, new_value)          \
    STANDIN_ATOMIC(name, unsigned int, new_value) \
    STANDIN_ATOMIC(name, standin_ull, new_value)

STANDIN_ATOMIC_INTEGERS(atomicAdd, old + value)
STANDIN_ATOMIC(atomicAdd, float, old + value)
STANDIN_ATOMIC(atomicAdd, double, old + value)
STANDIN_ATOMIC(atomicSub, int, old - value)
STANDIN_ATOMIC(atomicSub, unsigned int, old - value)
STANDIN_ATOMIC_INTEGERS(atomicExch, value)
STANDIN_ATOMIC(atomicExch, float, value)
STANDIN_ATOMIC_INTEGERS(atomicMin, value < old ? value : old)
STANDIN_ATOMIC(atomicMin, standin_ll, value < old ? value : old)
STANDIN_ATOMIC_INTEGERS(atomicMax, value > old ? value : old)
STANDIN_ATOMIC(atomicMax, standin_ll, value > old ? value : old)
STANDIN_ATOMIC_INTEGERS(atomicAnd, old& value)
STANDIN_ATOMIC_INTEGERS(atomicOr, old | value)
STANDIN_ATOMIC_INTEGERS(atomicXor, old ^ value)
STANDIN_ATOMIC(atomicInc, unsigned int, old >= value ? 0u : old + 1)
STANDIN_ATOMIC(atomicDec, unsigned int, (old == 0 || old > value) ? value : old - 1)
#undef STANDIN_ATOMIC_INTEGERS
#undef STANDIN_ATOMIC

#define STANDIN_COMPARE_AND_SWAP(Type)                               \
    inline Type atomicCAS(Type* address, Type compare, Type value) { \
        Type old = *address;                                         \
        if (old == compare) *address = value;                        \
        return old;                                                  \
    }
STANDIN_COMPARE_AND_SWAP(int)
STANDIN_COMPARE_AND_SWAP(unsigned int)
STANDIN_COMPARE_AND_SWAP(standin_ull)
STANDIN_COMPARE_AND_SWAP(unsigned short)
#undef STANDIN_COMPARE_AND_SWAP
