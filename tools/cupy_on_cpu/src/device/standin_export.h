// How a compiled kernel is found and called: the compiler appends one STANDIN_EXPORT per kernel.
#pragma once

#include <string>

// Arguments are read from the host's memory, which is no business of a kernel's bounds checks.
#define STANDIN_UNCHECKED __attribute__((no_sanitize("kernel-address")))

namespace standin {

template <class Argument>
STANDIN_UNCHECKED inline Argument read_argument(void* address) {
    alignas(Argument) char bytes[sizeof(Argument)];
    memcpy(bytes, address, sizeof(Argument));
    return *reinterpret_cast<Argument*>(bytes);
}

template <class... Arguments, size_t... Index>
STANDIN_UNCHECKED inline void call_kernel(void (*kernel)(Arguments...), void** addresses,
                                          std::index_sequence<Index...>) {
    kernel(read_argument<std::remove_cv_t<Arguments>>(addresses[Index])...);
}

template <class... Arguments>
STANDIN_UNCHECKED inline void call_kernel(void (*kernel)(Arguments...), void** addresses) {
    call_kernel(kernel, addresses, std::index_sequence_for<Arguments...>{});
}

// A type as NumPy spells it ("f4", "i8", "b1"), "v" for void, "x<bytes>" for anything else.
template <class Type>
inline std::string type_code() {
    if constexpr (std::is_void_v<Type>) {
        return "v";
    } else {
        const std::string bytes = std::to_string(sizeof(Type));
        if (std::is_same_v<Type, bool>) return "b1";
        if (std::is_floating_point_v<Type>) return "f" + bytes;
        if (std::is_integral_v<Type>) return (std::is_signed_v<Type> ? "i" : "u") + bytes;
        return "x" + bytes;
    }
}

// "*f4" is a pointer to float, "&f4" a pointer to const float, "f4" a float by value.
template <class Argument>
inline std::string argument_code() {
    if constexpr (std::is_pointer_v<Argument>) {
        using Pointee = std::remove_pointer_t<Argument>;
        const char* mark = std::is_const_v<Pointee> ? "&" : "*";
        return mark + type_code<std::remove_cv_t<Pointee>>();
    } else {
        return type_code<std::remove_cv_t<Argument>>();
    }
}

template <class... Arguments>
inline std::string signature(void (*)(Arguments...)) {
    std::string codes;
    ((codes += argument_code<std::remove_cv_t<Arguments>>() + ","), ...);
    return codes;
}

}  // namespace standin

#define STANDIN_EXPORT(symbol, kernel)                               \
    extern "C" void standin_kernel_##symbol(void** addresses) {      \
        standin::call_kernel(kernel, addresses);                     \
    }                                                                \
    extern "C" const char* standin_signature_##symbol() {            \
        static const std::string codes = standin::signature(kernel); \
        return codes.c_str();                                        \
    }
// The most threads a block may have, from __launch_bounds__.
#define STANDIN_EXPORT_BOUND(symbol, ...) \
    extern "C" int standin_bound_##symbol() { return std::get<0>(std::make_tuple(__VA_ARGS__)); }

// Where the section of the __shared__ variables begins and ends; absent if there are none.
extern "C" char __start_standin_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_standin_shared[] __attribute__((weak, visibility("hidden")));
#define STANDIN_EXPORT_SHARED                                          \
    extern "C" void standin_shared_section(char** begin, char** end) { \
        *begin = __start_standin_shared;                               \
        *end = __stop_standin_shared;                                  \
    }
