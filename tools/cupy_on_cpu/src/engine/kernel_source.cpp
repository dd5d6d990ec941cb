#include "kernel_source.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>

namespace standin {
namespace {

bool is_word(char c) { return isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool is_blank(char c) { return isspace(static_cast<unsigned char>(c)); }

size_t skip_blanks(const std::string& text, size_t at) {
    while (at < text.size() && is_blank(text[at]))
        at++;
    return at;
}

// The position after the string literal that begins at a quote.
size_t skip_literal(const std::string& text, size_t quote) {
    size_t at = quote + 1;
    while (at < text.size() && text[at] != '"' && text[at] != '\n')
        at += text[at] == '\\' ? 2 : 1;
    return std::min(at + 1, text.size());
}

// The position after the parenthesis that closes the one at open.
size_t skip_parentheses(const std::string& text, size_t open) {
    int depth = 0;
    size_t at = open;
    do {
        depth += (text[at] == '(') - (text[at] == ')');
        at++;
    } while (depth && at < text.size());
    return at;
}

bool on_preprocessor_line(const std::string& text, size_t at) {
    const size_t newline = text.rfind('\n', at);
    const size_t line = skip_blanks(text, newline == std::string::npos ? 0 : newline + 1);
    return line < at && text[line] == '#';
}

bool follows_template_header(const std::string& text, size_t at) {
    const size_t end = text.find_last_of(";}", at);
    const size_t begin = end == std::string::npos ? 0 : end + 1;
    return text.substr(begin, at - begin).find("template") != std::string::npos;
}

// Reads "void __launch_bounds__(128) name(" after __global__: the last word before the parameters.
KernelDeclaration read_declaration(const std::string& text, size_t at) {
    static const std::set<std::string> attributes = {"__launch_bounds__", "__attribute__",
                                                     "__maxnreg__", "__cluster_dims__"};
    KernelDeclaration kernel;
    for (at = skip_blanks(text, at); at < text.size(); at = skip_blanks(text, at)) {
        if (is_word(text[at])) {
            const size_t begin = at;
            while (at < text.size() && is_word(text[at]))
                at++;
            kernel.name = text.substr(begin, at - begin);
        } else if (text[at] == '(' && attributes.count(kernel.name)) {
            const size_t end = skip_parentheses(text, at);
            if (kernel.name == "__launch_bounds__")
                kernel.launch_bound = text.substr(at + 1, end - at - 2);
            at = end;
        } else {
            break;
        }
    }
    if (at >= text.size() || text[at] != '(') kernel.name.clear();
    return kernel;
}

}  // namespace

std::string without_comments(const std::string& source) {
    std::string text;
    text.reserve(source.size());
    for (size_t at = 0; at < source.size();) {
        if (source[at] == '"') {
            const size_t end = skip_literal(source, at);
            text.append(source, at, end - at);
            at = end;
        } else if (source.compare(at, 2, "//") == 0) {
            at = std::min(source.find('\n', at), source.size());
        } else if (source.compare(at, 2, "/*") == 0) {
            const size_t close = source.find("*/", at + 2);
            const size_t end = close == std::string::npos ? source.size() : close + 2;
            text.append(std::count(source.begin() + at, source.begin() + end, '\n'), '\n');
            at = end;
        } else {
            text += source[at++];
        }
    }
    return text;
}

std::vector<KernelDeclaration> find_kernels(const std::string& text) {
    static const std::string keyword = "__global__";
    std::vector<KernelDeclaration> kernels;
    std::set<std::string> seen;
    for (size_t at = text.find(keyword); at != std::string::npos;
         at = text.find(keyword, at + keyword.size())) {
        if (at > 0 && is_word(text[at - 1])) continue;
        if (on_preprocessor_line(text, at) || follows_template_header(text, at)) continue;
        const KernelDeclaration kernel = read_declaration(text, at + keyword.size());
        if (!kernel.name.empty() && seen.insert(kernel.name).second) kernels.push_back(kernel);
    }
    return kernels;
}

bool defines_kernels_by_macro(const std::string& text) {
    static const std::regex macro(R"(#[ \t]*define[^\n]*(\\\n[^\n]*)*__global__)");
    return std::regex_search(text, macro);
}

std::string with_dynamic_shared_pointers(const std::string& source) {
    static const std::regex declaration(
        R"(extern\s+__shared__\s+((?:__align__\s*\([^)]*\)\s*|alignas\s*\([^)]*\)\s*)?))"
        R"(((?:[\w:]+\s+)*?[\w:]+(?:\s*<[^;<>]*>)?)\s+(\w+)\s*\[\s*\]\s*;)");
    // std::regex is slow, and most sources have no dynamic shared memory.
    if (source.find("__shared__") == std::string::npos) return source;
    if (source.find("extern") == std::string::npos) return source;
    return std::regex_replace(source, declaration, "$2* $3 = ($2*)standin_dynamic_shared();");
}

std::string with_lockstep_syncs(const std::string& source) {
    if (source.find("bitonic_sort_step") == std::string::npos) return source;
    static const std::regex sort_step(R"((bitonic_sort_step< T >\([^;]*;))");
    static const std::regex merge_loop(R"(for \(int s = i; s < u; s \+= 32\))");
    const std::string synced =
        std::regex_replace(source, sort_step, "__syncwarp(); $1 __syncwarp();");
    return std::regex_replace(synced, merge_loop, "__syncwarp(); $&");
}

}  // namespace standin
