// NVRTC: "compiling" is g++ with the headers of device/ (see engine/compiler.cpp).
#include <nvrtc.h>

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "../engine/compiler.h"
#include "../engine/settings.h"
#include "image.h"

using namespace standin;

namespace {

namespace fs = std::filesystem;

struct Program {
    CompileRequest request;
    std::string log;
    std::string image;
    std::map<std::string, std::string> exported_names;
};

Program* own(nvrtcProgram program) { return reinterpret_cast<Program*>(program); }

std::string read_bytes(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

// The folder that holds lib, device and pch (see builder/library.py), found from where this library
// was loaded.
const fs::path& root() {
    static const fs::path folder = [] {
        Dl_info info;
        dladdr(reinterpret_cast<void*>(&nvrtcVersion), &info);
        return fs::canonical(info.dli_fname).parent_path().parent_path();
    }();
    return folder;
}

Toolchain toolchain() {
    const std::string base = root().string();
    return {{base + "/pch", base + "/device", base + "/nvidia"},
            base + "/lib",
            "cudastandin",
            true,
            true};
}

uint64_t hash(const std::string& text) {
    uint64_t value = 1469598103934665603ull;  // FNV-1a
    for (unsigned char byte : text)
        value = (value ^ byte) * 1099511628211ull;
    return value;
}

// CuPy compiles an empty source and takes the result as the compiler's version in the keys of its
// kernel cache. So everything that changes a compiled kernel has to show in it.
std::string fingerprint() {
    std::string text = root().string();
    for (const std::string& flag : compiler_flags(toolchain(), "", check_bounds_setting()))
        text += flag;
    text += text_setting("STANDIN_NO_LOCKSTEP_SYNCS");
    char line[64];
    snprintf(line, sizeof line, "// CUDA stand-in %016llx\n", (unsigned long long)hash(text));
    return line;
}

bool is_blank(const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char c) { return isspace(c); });
}

bool starts_with(const std::string& text, const std::string& begin) {
    return text.compare(0, begin.size(), begin) == 0;
}

// Takes over what g++ understands of NVRTC's options: macros, include folders and the standard.
void read_options(CompileRequest& request, int count, const char* const* options) {
    for (int i = 0; i < count; i++) {
        const std::string option = options[i];
        if ((option == "-I" || option == "-D") && i + 1 < count)
            request.options.push_back(option + options[++i]);
        else if (starts_with(option, "-I") || starts_with(option, "-D") ||
                 starts_with(option, "-U"))
            request.options.push_back(option);
        else if (starts_with(option, "--include-path="))
            request.options.push_back("-I" + option.substr(15));
        else if (starts_with(option, "--define-macro="))
            request.options.push_back("-D" + option.substr(15));
        else if (starts_with(option, "-std=") || starts_with(option, "--std="))
            request.standard = option.substr(option.find('=') + 1) == "c++20" ? "c++20" : "c++17";
    }
}

std::string temporary_library() {
    std::string path = (fs::temp_directory_path() / "standin_XXXXXX.so").string();
    const int file = mkstemps(path.data(), 3);
    if (file >= 0) close(file);
    return path;
}

}  // namespace

extern "C" {

// For builder/standin_layer.py, which precompiles headers: one flag per line.
const char* standin_compiler_flags(int check_bounds) {
    static std::string lines;
    lines.clear();
    for (const std::string& flag : compiler_flags(toolchain(), "c++17", check_bounds != 0))
        lines += flag + "\n";
    return lines.c_str();
}

const char* nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
    case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
    case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
    case NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID: return "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    default: return "NVRTC_ERROR_INTERNAL_ERROR";
    }
}

nvrtcResult nvrtcVersion(int* major, int* minor) {
    *major = 12;
    *minor = 9;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
    *count = 4;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int* architectures) {
    const int supported[] = {70, 80, 90, 100};
    std::copy(std::begin(supported), std::end(supported), architectures);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name,
                               int header_count, const char* const* headers,
                               const char* const* header_names) {
    auto* created = new Program;
    created->request.source = source;
    created->request.file_name = name && *name ? name : "kernel.cu";
    created->request.standard = "c++17";
    for (int i = 0; i < header_count; i++)
        created->request.headers.emplace_back(header_names[i], headers[i]);
    *program = reinterpret_cast<nvrtcProgram>(created);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
    delete own(*program);
    *program = nullptr;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char* expression) {
    own(program)->request.name_expressions.push_back(expression);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram handle, int option_count, const char* const* options) {
    Program& program = *own(handle);
    if (is_blank(program.request.source)) {
        program.image = fingerprint();
        return NVRTC_SUCCESS;
    }
    read_options(program.request, option_count, options);
    program.request.check_bounds = check_bounds_setting();
    program.request.output = temporary_library();
    const CompileResult result = compile_kernels(toolchain(), program.request);
    program.log = result.log;
    program.exported_names = result.exported_names;
    if (result.succeeded) program.image = make_image(read_bytes(program.request.output));
    unlink(program.request.output.c_str());
    return result.succeeded ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}

nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char* expression, const char** name) {
    const auto& names = own(program)->exported_names;
    const auto found = names.find(expression);
    if (found == names.end()) return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
    *name = found->second.c_str();
    return NVRTC_SUCCESS;
}

// PTX and cubin are the same here; the sizes count a final zero, as NVRTC's do.
nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* bytes) {
    *bytes = own(program)->image.size() + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* bytes) {
    const std::string& image = own(program)->image;
    memcpy(bytes, image.c_str(), image.size() + 1);
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* bytes) {
    return nvrtcGetPTXSize(program, bytes);
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* bytes) { return nvrtcGetPTX(program, bytes); }

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* bytes) {
    *bytes = own(program)->log.size() + 1;
    return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* text) {
    strcpy(text, own(program)->log.c_str());
    return NVRTC_SUCCESS;
}
}
