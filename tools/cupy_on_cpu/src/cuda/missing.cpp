#include "missing.h"

#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace {

std::mutex mutex;
std::vector<std::string> called;

void note(const char* name) {
    fprintf(stderr, "[standin] not implemented: %s\n", name);
    std::lock_guard<std::mutex> lock(mutex);
    called.push_back(name);
}

}  // namespace

namespace standin {

std::string last_missing_function() {
    std::lock_guard<std::mutex> lock(mutex);
    return called.empty() ? "" : called.back();
}

}  // namespace standin

extern "C" {

int standin_missing_status(const char* name, int status) {
    note(name);
    return status;
}

void standin_missing_throw(const char* name) {
    note(name);
    throw std::runtime_error(std::string("the CUDA stand-in has no ") + name);
}

int standin_missing_count() {
    std::lock_guard<std::mutex> lock(mutex);
    return called.size();
}

const char* standin_missing_name(int index) {
    std::lock_guard<std::mutex> lock(mutex);
    return called[index].c_str();
}
}
