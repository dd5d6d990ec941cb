#include "settings.h"

#include <cstdio>
#include <cstdlib>

namespace standin {

std::string text_setting(const char* name) {
    const char* text = getenv(name);
    return text ? text : "";
}

int integer_setting(const char* name, int fallback) {
    const std::string text = text_setting(name);
    return text.empty() ? fallback : atoi(text.c_str());
}

size_t bytes_setting(const char* name, size_t fallback) {
    const std::string text = text_setting(name);
    if (text.empty()) return fallback;
    char* end = nullptr;
    const unsigned long long number = strtoull(text.c_str(), &end, 10);
    switch (*end) {
    case '\0': return number;
    case 'K': return number << 10;
    case 'M': return number << 20;
    case 'G': return number << 30;
    }
    fprintf(stderr, "[standin] %s=%s is no number of bytes; write 64M, 2G or 1000000\n", name,
            text.c_str());
    abort();
}

bool check_bounds_setting() { return integer_setting("STANDIN_CHECK_BOUNDS", 0) != 0; }

}  // namespace standin
