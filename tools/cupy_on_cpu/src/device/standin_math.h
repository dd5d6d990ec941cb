// CUDA's min and max, cached loads, bit casts, integer intrinsics, rounding and fast math.
#pragma once

// ---- min and max, with CUDA's mixed-sign overloads

#define STANDIN_MIN_MAX(Result, A, B)              \
    inline Result min(A a, B b) {                  \
        const Result x = (Result)a, y = (Result)b; \
        return y < x ? y : x;                      \
    }                                              \
    inline Result max(A a, B b) {                  \
        const Result x = (Result)a, y = (Result)b; \
        return x < y ? y : x;                      \
    }
#define STANDIN_MIN_MAX_SIGNS(Signed, Unsigned)   \
    STANDIN_MIN_MAX(Signed, Signed, Signed)       \
    STANDIN_MIN_MAX(Unsigned, Unsigned, Unsigned) \
    STANDIN_MIN_MAX(Unsigned, Signed, Unsigned)   \
    STANDIN_MIN_MAX(Unsigned, Unsigned, Signed)
STANDIN_MIN_MAX_SIGNS(int, unsigned int)
STANDIN_MIN_MAX_SIGNS(long, unsigned long)
STANDIN_MIN_MAX_SIGNS(standin_ll, standin_ull)
#undef STANDIN_MIN_MAX_SIGNS
#undef STANDIN_MIN_MAX

inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }
inline standin_ll llmin(standin_ll a, standin_ll b) { return a < b ? a : b; }
inline standin_ll llmax(standin_ll a, standin_ll b) { return a < b ? b : a; }

// ---- loads and stores with cache hints, clocks

#define STANDIN_LOAD(name)            \
    template <class T>                \
    inline T name(const T* address) { \
        return *address;              \
    }
STANDIN_LOAD(__ldg)
STANDIN_LOAD(__ldcs)
STANDIN_LOAD(__ldca)
STANDIN_LOAD(__ldcg)
#undef STANDIN_LOAD
template <class T>
inline void __stcs(T* address, T value) {
    *address = value;
}
template <class T>
inline void __stcg(T* address, T value) {
    *address = value;
}
inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
inline void __nanosleep(unsigned) {}

// ---- bit casts

#define STANDIN_BIT_CAST(name, To, From)                                        \
    inline To name(From from) {                                                 \
        static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size"); \
        To to;                                                                  \
        memcpy(&to, &from, sizeof to);                                          \
        return to;                                                              \
    }
STANDIN_BIT_CAST(__float_as_int, int, float)
STANDIN_BIT_CAST(__int_as_float, float, int)
STANDIN_BIT_CAST(__float_as_uint, unsigned, float)
STANDIN_BIT_CAST(__uint_as_float, float, unsigned)
STANDIN_BIT_CAST(__double_as_longlong, long long, double)
STANDIN_BIT_CAST(__longlong_as_double, double, long long)
#undef STANDIN_BIT_CAST
inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double(((long long)high << 32) | (unsigned)low);
}

// ---- integer intrinsics

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(standin_ull x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(standin_ll x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(standin_ll x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++)
        reversed |= (x >> bit & 1u) << (31 - bit);
    return reversed;
}
inline standin_ull __brevll(standin_ull x) {
    return ((standin_ull)__brev((unsigned)x) << 32) | __brev((unsigned)(x >> 32));
}
inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((standin_ull)a * b) >> 32); }
inline standin_ull __umul64hi(standin_ull a, standin_ull b) {
    return (standin_ull)(((unsigned __int128)a * b) >> 64);
}
inline standin_ll __mul64hi(standin_ll a, standin_ll b) {
    return (standin_ll)(((__int128)a * b) >> 64);
}
inline int __mul24(int a, int b) { return ((a << 8) >> 8) * ((b << 8) >> 8); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    shift &= 31;
    return shift ? (high << shift) | (low >> (32 - shift)) : high;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    shift &= 31;
    return shift ? (high << (32 - shift)) | (low >> shift) : low;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const standin_ull bytes = ((standin_ull)b << 32) | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    return result;
}

// ---- arithmetic with a stated rounding

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }

// ---- conversions with a stated rounding

inline int __float2int_rn(float x) { return (int)rintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline int __float2int_rd(float x) { return (int)floorf(x); }
inline int __float2int_ru(float x) { return (int)ceilf(x); }
inline unsigned __float2uint_rn(float x) { return (unsigned)rintf(x); }
inline unsigned __float2uint_rz(float x) { return (unsigned)x; }
inline standin_ll __float2ll_rn(float x) { return (standin_ll)rintf(x); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __ll2float_rn(standin_ll x) { return (float)x; }
inline int __double2int_rn(double x) { return (int)rint(x); }
inline int __double2int_rz(double x) { return (int)x; }
inline float __double2float_rn(double x) { return (float)x; }
inline standin_ll __double2ll_rn(double x) { return (standin_ll)rint(x); }
inline double __int2double_rn(int x) { return x; }
inline double __ll2double_rn(standin_ll x) { return (double)x; }

// ---- fast math: glibc declares functions of these names, so they must be macros

#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, (x))
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __powf(x, y) powf((x), (y))
