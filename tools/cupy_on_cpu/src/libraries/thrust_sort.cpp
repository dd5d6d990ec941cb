// CuPy's entry points to Thrust (cupy_thrust.h): sorts. CuPy compiles them with nvcc; here they are
// plain C++, in NumPy's order: NaN last, complex numbers by their real part first.
#include <algorithm>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "handles.h"

namespace {

using Shape = std::vector<ptrdiff_t>;

template <class T>
bool is_nan(T x) {
    return x != x;
}

template <class T>
struct NumpyLess {
    bool operator()(T a, T b) const {
        if constexpr (std::is_integral_v<T>) return a < b;
        return !is_nan(a) && (a < b || is_nan(b));
    }
};

template <class R>
struct NumpyLess<std::complex<R>> {
    static int nan_rank(std::complex<R> z) { return 2 * is_nan(z.real()) + is_nan(z.imag()); }

    bool operator()(std::complex<R> a, std::complex<R> b) const {
        const int rank_a = nan_rank(a), rank_b = nan_rank(b);
        if (rank_a != rank_b) return rank_a < rank_b;
        if (!is_nan(a.real()) && a.real() != b.real()) return a.real() < b.real();
        return !is_nan(a.imag()) && a.imag() < b.imag();
    }
};

// The last axis is sorted; the others count rows.
struct Rows {
    size_t count, length;
    explicit Rows(const Shape& shape) {
        length = shape.empty() ? 1 : shape.back();
        size_t total = 1;
        for (ptrdiff_t extent : shape)
            total *= extent;
        count = length ? total / length : 0;
    }
};

// Calls function(T()) for CuPy's number of a type (cupy/cuda/cupy_type_dispatcher.cuh).
template <class Function>
void with_type(int type, Function function) {
    switch (type) {
    case 0: return function(int8_t());
    case 1: return function(uint8_t());
    case 2: return function(int16_t());
    case 3: return function(uint16_t());
    case 4: return function(int32_t());
    case 5: return function(uint32_t());
    case 6: return function(int64_t());
    case 7: return function(uint64_t());
    case 8: return function(_Float16());
    case 9: return function(float());
    case 10: return function(double());
    case 11: return function(std::complex<float>());
    case 12: return function(std::complex<double>());
    case 13: return function(bool());
    }
    throw std::runtime_error("the CUDA stand-in cannot sort this type");
}

template <class Function>
void late_call(int type, intptr_t stream, Function work) {
    with_type(type, [](auto) {});  // a type that it does not know is refused by the call itself
    standin::late_call(reinterpret_cast<cudaStream_t>(stream), work);
}

template <class T>
void sort_indices(size_t* begin, size_t* end, const T* keys) {
    std::stable_sort(begin, end,
                     [&](size_t a, size_t b) { return NumpyLess<T>()(keys[a], keys[b]); });
}

}  // namespace

void thrust_sort(int type, void* data, size_t*, const Shape& shape, intptr_t stream, void*) {
    const Rows rows(shape);
    late_call(type, stream, [=] {
        with_type(type, [&](auto zero) {
            using T = decltype(zero);
            T* row = static_cast<T*>(data);
            for (size_t i = 0; i < rows.count; i++, row += rows.length)
                std::stable_sort(row, row + rows.length, NumpyLess<T>());
        });
    });
}

void thrust_argsort(int type, size_t* indices, void* data, void*, const Shape& shape,
                    intptr_t stream, void*) {
    const Rows rows(shape);
    late_call(type, stream, [=] {
        with_type(type, [&](auto zero) {
            using T = decltype(zero);
            T* row = static_cast<T*>(data);
            size_t* line = indices;
            for (size_t i = 0; i < rows.count; i++, row += rows.length, line += rows.length) {
                std::iota(line, line + rows.length, size_t(0));
                sort_indices(line, line + rows.length, row);
                // Thrust sorts by key, which leaves the keys sorted too.
                std::stable_sort(row, row + rows.length, NumpyLess<T>());
            }
        });
    });
}

void thrust_lexsort(int type, size_t* indices, void* keys, size_t key_count, size_t n,
                    intptr_t stream, void*) {
    late_call(type, stream, [=] {
        std::iota(indices, indices + n, size_t(0));
        with_type(type, [&](auto zero) {
            using T = decltype(zero);
            for (size_t key = 0; key < key_count; key++)
                sort_indices(indices, indices + n, static_cast<T*>(keys) + key * n);
        });
    });
}
