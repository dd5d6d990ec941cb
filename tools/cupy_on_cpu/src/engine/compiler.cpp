#include "compiler.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cxxabi.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "kernel_source.h"
#include "launch_limits.h"
#include "settings.h"

extern char** environ;

namespace standin {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// CuPy's own kernels begin with these lines; they are precompiled together.
const std::string kCupyHeaders =
    "#include <cupy/complex.cuh>\n#include <cupy/carray.cuh>\n"
    "#include <cupy/atomics.cuh>\n#include <cupy/math_constants.h>\n";

class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string pattern = (fs::temp_directory_path() / "standin_XXXXXX").string();
        if (mkdtemp(pattern.data())) path_ = pattern;
    }
    ~TemporaryFolder() {
        if (path_.empty()) return;
        if (integer_setting("STANDIN_KEEP", 0)) {
            fprintf(stderr, "[standin] kept %s\n", path_.c_str());
            return;
        }
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    std::string file(const std::string& name) const { return path_ + "/" + name; }
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

Words split(const std::string& text) {
    std::istringstream stream(text);
    return Words(std::istream_iterator<std::string>(stream), {});
}

void append(Words& words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
}

// Runs a command; what it prints goes to a file. Returns its exit status.
int run_command(const Words& command, const std::string& log) {
    std::vector<char*> arguments;
    for (const std::string& word : command)
        arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    pid_t child;
    const int error =
        posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error) {
        std::ofstream(log) << "cannot run " << command[0] << "; the stand-in compiles with it\n";
        return 127;
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

// The text in which __global__ functions can be found.
std::string text_of_kernels(const CompileRequest& request, const Words& command,
                            const TemporaryFolder& folder) {
    const std::string text = without_comments(request.source);
    if (!defines_kernels_by_macro(text)) return text;
    // Preprocessed without the device header, so that __global__ itself survives.
    std::ofstream(folder.file("macros.cpp")) << "#define __global__ __global__\n" << text;
    Words preprocess = command;
    append(preprocess, request.options);
    append(preprocess, {"-E", "-P", "-o", folder.file("macros.ii"), folder.file("macros.cpp")});
    run_command(preprocess, folder.file("log"));
    return read_text(folder.file("macros.ii"));
}

std::string export_lines(const std::vector<KernelDeclaration>& kernels,
                         const std::map<std::string, std::string>& expressions) {
    std::string lines = "\n#line 1 \"exports of the stand-in\"\nSTANDIN_EXPORT_SHARED\n", names;
    for (const KernelDeclaration& kernel : kernels) {
        names += kernel.name + ",";
        lines += "STANDIN_EXPORT(" + kernel.name + ", " + kernel.name + ")\n";
        if (!kernel.launch_bound.empty())
            lines += "STANDIN_EXPORT_BOUND(" + kernel.name + ", " + kernel.launch_bound + ")\n";
    }
    for (const auto& [expression, name] : expressions)
        lines += "STANDIN_EXPORT(" + name + ", (" + expression + "))\n";
    return lines + "extern \"C\" const char* standin_kernel_names() { return \"" + names +
           "\"; }\n";
}

bool is_of_cupy(const CompileRequest& request) {
    return request.source.compare(0, kCupyHeaders.size(), kCupyHeaders) == 0;
}

bool is_macro(const std::string& option) { return option.compare(0, 2, "-D") == 0; }

// "-DNAME=VALUE" as a line of source.
std::string define_line(const std::string& option) {
    std::string definition = option.substr(2);
    const size_t equals = definition.find('=');
    if (equals == std::string::npos) return "#define " + definition + " 1\n";
    definition[equals] = ' ';
    return "#define " + definition + "\n";
}

std::string whole_source(const CompileRequest& request, const std::string& exports) {
    const bool of_cupy = is_of_cupy(request);
    std::string macros;
    // NVRTC has no headers of its own that a macro named T could break; so macros come after ours.
    if (!of_cupy)
        for (const std::string& option : request.options)
            if (is_macro(option)) macros += define_line(option);
    std::string body = with_dynamic_shared_pointers(request.source);
    if (!integer_setting("STANDIN_NO_LOCKSTEP_SYNCS", 0)) body = with_lockstep_syncs(body);
    return std::string("#include \"") + (of_cupy ? "standin_cupy.h" : "standin_device.h") + "\"\n" +
           macros + "#line 1 \"" + request.file_name + "\"\n" + body + exports;
}

// The bytes of each __shared__ variable of a library. Those of templates are in no section, and not
// seen.
std::map<std::string, size_t> shared_variables(const std::string& library,
                                               const TemporaryFolder& folder) {
    std::map<std::string, size_t> bytes_of;
    if (run_command({"objdump", "-t", library}, folder.file("symbols")) != 0) return bytes_of;
    std::istringstream symbols(read_text(folder.file("symbols")));
    for (std::string line; std::getline(symbols, line);) {
        // "address flags standin_shared<tab>size name"
        const size_t section = line.find(" standin_shared\t");
        if (section == std::string::npos) continue;
        std::istringstream words(line.substr(section + 16));
        std::string size, name;
        words >> size >> name;
        if (line[section - 1] != 'd') bytes_of[name] = std::stoul(size, nullptr, 16);
    }
    return bytes_of;
}

// What each function of a text of assembly names.
std::map<std::string, std::set<std::string>> names_by_function(const std::string& assembly) {
    static const std::regex name(R"([A-Za-z_][\w.$]*)");
    std::map<std::string, std::set<std::string>> found;
    std::string function;
    std::istringstream lines(assembly);
    for (std::string line; std::getline(lines, line);) {
        std::smatch type;
        static const std::regex begin(R"(^\s*\.type\s+([\w.$]+), @(\w+))");
        if (std::regex_search(line, type, begin)) {
            function = type[2] == "function" ? std::string(type[1]) : "";
            if (!function.empty()) found[function];
        } else if (!function.empty() && line[0] == '\t' && line[1] != '.') {
            for (std::sregex_iterator at(line.begin(), line.end(), name), end; at != end; ++at)
                found[function].insert(at->str());
        }
    }
    return found;
}

size_t shared_bytes_from(const std::string& function,
                         const std::map<std::string, std::set<std::string>>& names,
                         const std::map<std::string, size_t>& bytes_of) {
    std::set<std::string> seen{function};
    std::vector<std::string> left{function};
    size_t bytes = 0;
    while (!left.empty()) {
        const std::string one = left.back();
        left.pop_back();
        if (const auto found = bytes_of.find(one); found != bytes_of.end()) bytes += found->second;
        if (const auto found = names.find(one); found != names.end())
            for (const std::string& next : found->second)
                if (seen.insert(next).second) left.push_back(next);
    }
    return bytes;
}

// "first(float*)" for "_Z5firstPf".
std::string readable(const std::string& symbol) {
    int status = 0;
    char* const text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
    const std::string name = status == 0 ? text : symbol;
    std::free(text);
    return name;
}

// A message as ptxas gives it, if a kernel takes too much with everything that it calls; else nothing.
// `compile` is the command without sources and results.
std::string too_much_shared(const std::string& library, Words compile,
                            const TemporaryFolder& folder) {
    const auto bytes_of = shared_variables(library, folder);
    size_t all = 0;
    for (const auto& [name, bytes] : bytes_of)
        all += bytes;
    if (all <= kSharedBytesPerBlock) return "";
    // Rarely: which of them a kernel uses, the assembly tells, where they still have their names.
    append(compile, {"-S", "-o", folder.file("kernel.s"), folder.file("kernel.cpp")});
    if (run_command(compile, folder.file("log")) != 0) return "";
    const auto names = names_by_function(read_text(folder.file("kernel.s")));
    for (const auto& [function, unused] : names) {
        const size_t bytes = shared_bytes_from(function, names, bytes_of);
        if (bytes > kSharedBytesPerBlock)
            return "ptxas error   : Entry function '" + readable(function) +
                   "' uses too much shared data (" + std::to_string(bytes) + " bytes, " +
                   std::to_string(kSharedBytesPerBlock) + " max)\n";
    }
    return "";
}

}  // namespace

std::vector<std::string> compiler_flags(const Toolchain& toolchain, const std::string& standard,
                                        bool check_bounds) {
    // Contraction to fused multiply-adds is left to fma(), so that results do not depend on g++.
    Words flags = {
        "-std=" + standard, "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-fno-gnu-unique",
        "-ffp-contract=off"};
    if (toolchain.nvidia_headers) flags.push_back("-DSTANDIN_NVIDIA_HEADERS");
    if (toolchain.permissive) flags.push_back("-fpermissive");
    if (check_bounds)
        append(flags, {"-fsanitize=kernel-address", "--param", "asan-stack=0", "--param",
                       "asan-globals=1", "--param", "asan-instrumentation-with-call-threshold=0",
                       "-fsanitize-sections=standin_shared"});
    append(flags, split(text_setting("STANDIN_CXXFLAGS")));
    return flags;
}

CompileResult compile_kernels(const Toolchain& toolchain, const CompileRequest& request) {
    const TemporaryFolder folder;
    if (folder.path().empty()) return {false, "no temporary folder", {}};
    CompileResult result{false, "", {}};
    Words command = {"g++"};
    append(command, compiler_flags(toolchain, request.standard, request.check_bounds));
    for (const std::string& include : toolchain.include_folders)
        command.push_back("-I" + include);
    for (const std::string& option : request.options)
        if (is_of_cupy(request) || !is_macro(option)) command.push_back(option);
    for (const auto& [name, text] : request.headers)
        std::ofstream(folder.file(name)) << text;
    command.push_back("-I" + folder.path());

    for (size_t i = 0; i < request.name_expressions.size(); i++)
        result.exported_names[request.name_expressions[i]] = "expression" + std::to_string(i);
    const auto kernels = find_kernels(text_of_kernels(request, command, folder));
    std::ofstream(folder.file("kernel.cpp"))
        << whole_source(request, export_lines(kernels, result.exported_names));
    const Words compile = command;
    append(command, {"-shared", "-Wl,-Bsymbolic", "-o", request.output, folder.file("kernel.cpp"),
                     "-L" + toolchain.library_folder, "-l" + toolchain.library,
                     "-Wl,-rpath," + toolchain.library_folder});
    result.succeeded = run_command(command, folder.file("log")) == 0;
    result.log = read_text(folder.file("log"));
    if (!result.succeeded) return result;
    const std::string refused = too_much_shared(request.output, compile, folder);
    if (!refused.empty()) return {false, result.log + refused, {}};
    run_command({"strip", request.output}, folder.file("log"));
    return result;
}

}  // namespace standin
