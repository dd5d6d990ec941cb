// CUDA's built-in vector types, for sources that are compiled without NVIDIA's headers.
#pragma once

#define STANDIN_VECTOR_TYPES(Name, Type, align2, align4)                        \
    struct Name##1 { Type x; };                                                 \
    struct __attribute__((aligned(align2))) Name##2 { Type x, y; };             \
    struct Name##3 { Type x, y, z; };                                           \
    struct __attribute__((aligned(align4))) Name##4 { Type x, y, z, w; };       \
    inline Name##1 make_##Name##1(Type x) { return {x}; }                       \
    inline Name##2 make_##Name##2(Type x, Type y) { return {x, y}; }            \
    inline Name##3 make_##Name##3(Type x, Type y, Type z) { return {x, y, z}; } \
    inline Name##4 make_##Name##4(Type x, Type y, Type z, Type w) { return {x, y, z, w}; }

STANDIN_VECTOR_TYPES(char, signed char, 2, 4)
STANDIN_VECTOR_TYPES(uchar, unsigned char, 2, 4)
STANDIN_VECTOR_TYPES(short, short, 4, 8)
STANDIN_VECTOR_TYPES(ushort, unsigned short, 4, 8)
STANDIN_VECTOR_TYPES(int, int, 8, 16)
STANDIN_VECTOR_TYPES(uint, unsigned int, 8, 16)
STANDIN_VECTOR_TYPES(longlong, long long, 16, 16)
STANDIN_VECTOR_TYPES(ulonglong, unsigned long long, 16, 16)
STANDIN_VECTOR_TYPES(float, float, 8, 16)
STANDIN_VECTOR_TYPES(double, double, 16, 16)
#undef STANDIN_VECTOR_TYPES

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1)
        : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    operator uint3() const { return {x, y, z}; }
};
