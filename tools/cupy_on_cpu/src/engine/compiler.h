// Compiles CUDA C++ with g++ to a shared library of kernels.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace standin {

// Where the pieces of the stand-in are, for a compilation.
struct Toolchain {
    std::vector<std::string> include_folders;  // of the device headers, precompiled ones first
    std::string library_folder;
    std::string library;  // as after -l: what kernels link to
    bool nvidia_headers;  // are NVIDIA's headers among the include folders?
    bool permissive;      // CuPy's own headers need -fpermissive
};

struct CompileRequest {
    std::string source;
    std::string file_name;                                     // for messages
    std::string standard;                                      // "c++17"
    std::vector<std::string> options;                          // -D, -U and -I, as g++ takes them
    std::vector<std::string> name_expressions;                 // template instances to export
    std::vector<std::pair<std::string, std::string>> headers;  // name and text
    bool check_bounds;
    std::string output;  // path of the shared library
};

struct CompileResult {
    bool succeeded;
    std::string log;
    std::map<std::string, std::string> exported_names;  // of the name expressions
};

CompileResult compile_kernels(const Toolchain& toolchain, const CompileRequest& request);

// The flags that every kernel and every precompiled header is compiled with.
std::vector<std::string> compiler_flags(const Toolchain& toolchain, const std::string& standard,
                                        bool check_bounds);

}  // namespace standin
