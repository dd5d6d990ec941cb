// CUDA driver: contexts, modules and launches. A "cubin" is a shared library that nvrtc.cpp made.
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../engine/executor.h"
#include "../engine/launch_limits.h"
#include "../engine/memory_map.h"
#include "../engine/settings.h"
#include "counters.h"
#include "devices.h"
#include "image.h"
#include "late.h"
#include "missing.h"

using namespace standin;

namespace {

struct Kernel {
    std::string name;
    KernelEntry entry;
    std::string signature;  // see device/standin_export.h
    int launch_bound;       // 0 without
    char *shared_begin, *shared_end;
    int max_dynamic_shared;
    std::vector<size_t> argument_bytes;
    int device;  // of the context that its module was loaded into
};

// The arguments of a launch, kept for when it runs.
struct KeptArguments {
    std::vector<std::vector<char>> values;
    std::vector<void*> addresses;

    KeptArguments(const Kernel& kernel, void** given) {
        for (size_t i = 0; i < kernel.argument_bytes.size(); i++) {
            const char* begin = static_cast<const char*>(given[i]);
            values.emplace_back(begin, begin + kernel.argument_bytes[i]);
        }
        for (auto& value : values)
            addresses.push_back(value.data());
    }
};

// From a signature such as "*f4,i8,x24,"; see device/standin_export.h.
std::vector<size_t> sizes_of(const std::string& signature) {
    std::vector<size_t> sizes;
    size_t begin = 0;
    for (size_t comma; (comma = signature.find(',', begin)) != std::string::npos;
         begin = comma + 1) {
        const bool pointer = signature[begin] == '*' || signature[begin] == '&';
        sizes.push_back(pointer ? sizeof(void*) : std::stoul(signature.substr(begin + 1)));
    }
    return sizes;
}

struct Module {
    void* library;
    int device;
    std::map<std::string, Kernel*> kernels;
};

std::atomic<int>& thread_order() {
    static std::atomic<int> order{integer_setting("STANDIN_ORDER", 0)};
    return order;
}

// One primary context per device; a handle is the address of its entry.
int context_devices[64];

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&context_devices[device]); }
int device_of(CUcontext context) { return reinterpret_cast<int*>(context) - context_devices; }

template <class Function>
Function symbol(const Module* module, const std::string& name) {
    return reinterpret_cast<Function>(dlsym(module->library, name.c_str()));
}

Kernel* find_kernel(Module* module, const std::string& name) {
    auto known = module->kernels.find(name);
    if (known != module->kernels.end()) return known->second;
    auto entry = symbol<KernelEntry>(module, "standin_kernel_" + name);
    if (!entry) return nullptr;
    auto signature = symbol<const char* (*)()>(module, "standin_signature_" + name);
    auto bound = symbol<int (*)()>(module, "standin_bound_" + name);
    auto section = symbol<void (*)(char**, char**)>(module, "standin_shared_section");
    auto* kernel = new Kernel{name,
                              entry,
                              signature(),
                              bound ? bound() : 0,
                              nullptr,
                              nullptr,
                              static_cast<int>(kSharedBytesPerBlock),
                              sizes_of(signature()),
                              module->device};
    section(&kernel->shared_begin, &kernel->shared_end);
    return module->kernels[name] = kernel;
}

CUresult load_library(CUmodule* module, const char* bytes, size_t count) {
    // A name of its own for each: the dynamic linker takes two libraries of one name for the same.
    std::string path = (std::filesystem::temp_directory_path() / "standin_XXXXXX.so").string();
    const int file = mkstemps(path.data(), 3);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    const bool written = write(file, bytes, count) == static_cast<ssize_t>(count);
    close(file);
    void* library = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    unlink(path.c_str());
    if (!library) {
        fprintf(stderr, "[standin] cannot load a kernel: %s\n", dlerror());
        return CUDA_ERROR_INVALID_IMAGE;
    }
    *module = reinterpret_cast<CUmodule>(new Module{library, current_device(), {}});
    return CUDA_SUCCESS;
}

// A pointer argument into another device's memory is an error before it is a crash.
std::string foreign_argument(const Kernel& kernel, void** arguments, int device) {
    int index = 0;
    size_t begin = 0;
    for (size_t comma; (comma = kernel.signature.find(',', begin)) != std::string::npos;
         begin = comma + 1, index++) {
        const char mark = kernel.signature[begin];
        if (mark != '*' && mark != '&') continue;
        void* address;
        memcpy(&address, arguments[index], sizeof address);
        const auto region = find_region(address);
        if (region && region->kind == MemoryKind::device && region->device != device)
            return "argument " + std::to_string(index) + " is memory of device " +
                   std::to_string(region->device) + ", and the kernel runs on device " +
                   std::to_string(device);
    }
    return "";
}

CUresult complain(const Kernel& kernel, const std::string& what, CUresult error) {
    fprintf(stderr, "[standin] kernel %s: %s\n", kernel.name.c_str(), what.c_str());
    return error;
}

CUresult error_of(Outcome outcome) {
    switch (outcome) {
    case Outcome::finished: return CUDA_SUCCESS;
    case Outcome::assertion: return CUDA_ERROR_ASSERT;
    case Outcome::illegal_address: return CUDA_ERROR_ILLEGAL_ADDRESS;
    case Outcome::deadlock: return CUDA_ERROR_LAUNCH_FAILED;
    }
    return CUDA_ERROR_UNKNOWN;
}

// What a launch is refused for before it runs.
CUresult check(const Kernel& kernel, const Launch& launch, const Stream& stream) {
    const std::string limit =
        exceeded_limit(launch, kernel.max_dynamic_shared, kernel.launch_bound);
    if (!limit.empty()) return complain(kernel, limit, CUDA_ERROR_INVALID_VALUE);
    if (kernel.device != launch.device)
        return complain(kernel, "loaded for another device", CUDA_ERROR_INVALID_HANDLE);
    if (stream.device != launch.device)
        return complain(kernel, "launched on a stream of another device",
                        CUDA_ERROR_INVALID_HANDLE);
    const std::string foreign = foreign_argument(kernel, launch.arguments, launch.device);
    if (!foreign.empty()) return complain(kernel, foreign, CUDA_ERROR_ILLEGAL_ADDRESS);
    return CUDA_SUCCESS;
}

CUresult run(const Kernel& kernel, const Launch& launch) {
    const LaunchResult result = run_grid(launch);
    if (result.outcome != Outcome::finished)
        return complain(kernel, result.message, error_of(result.outcome));
    const std::string damage = find_damage();
    if (!damage.empty()) return complain(kernel, damage, CUDA_ERROR_ILLEGAL_ADDRESS);
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// For standin.py: returns the order before.
int standin_set_order(int order) { return thread_order().exchange(order); }

// ---- errors, versions, contexts

CUresult cuGetErrorName(CUresult error, const char** name) {
    switch (error) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case CUDA_ERROR_INVALID_IMAGE: *name = "CUDA_ERROR_INVALID_IMAGE"; break;
    case CUDA_ERROR_FILE_NOT_FOUND: *name = "CUDA_ERROR_FILE_NOT_FOUND"; break;
    case CUDA_ERROR_NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case CUDA_ERROR_ASSERT: *name = "CUDA_ERROR_ASSERT"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; break;
    default: *name = "CUDA_ERROR_UNKNOWN";
    }
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
    switch (error) {
    case CUDA_SUCCESS: *text = "no error"; break;
    case CUDA_ERROR_INVALID_VALUE: *text = "invalid argument"; break;
    case CUDA_ERROR_NOT_FOUND: *text = "named symbol not found"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; break;
    case CUDA_ERROR_ASSERT: *text = "device-side assert triggered"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *text = "unspecified launch failure"; break;
    default: *text = cudaGetErrorString(cudaErrorNotSupported);
    }
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned) { return device_count() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }

CUresult cuDriverGetVersion(int* version) {
    cudaDriverGetVersion(version);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }

CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = context_of(current_device());
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    if (context) cudaSetDevice(device_of(context));
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
    *device = current_device();
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream, CUcontext* context) { return cuCtxGetCurrent(context); }

// ---- modules

CUresult cuModuleLoadData(CUmodule* module, const void* bytes) {
    const char* image = static_cast<const char*>(bytes);
    if (!is_image(image)) {
        fprintf(stderr, "[standin] cuModuleLoadData: not made by the stand-in's compiler\n");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    return load_library(module, image_library(image), image_library_bytes(image));
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* bytes, unsigned, CUjit_option*, void**) {
    return cuModuleLoadData(module, bytes);
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    bytes.resize(std::max(bytes.size(), kImageHeaderBytes));
    return cuModuleLoadData(module, bytes.data());
}

// Stays loaded, so that a kernel handle that outlives its module does not crash.
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    Kernel* kernel = find_kernel(reinterpret_cast<Module*>(module), name);
    if (!kernel) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
    void* variable = symbol<void*>(reinterpret_cast<Module*>(module), name);
    if (!variable) return CUDA_ERROR_NOT_FOUND;
    if (address) *address = reinterpret_cast<CUdeviceptr>(variable);
    if (bytes) {
        Dl_info info;
        ElfW(Sym)* entry = nullptr;
        const bool known =
            dladdr1(variable, &info, reinterpret_cast<void**>(&entry), RTLD_DL_SYMENT);
        *bytes = known && entry ? entry->st_size : 0;
    }
    return CUDA_SUCCESS;
}

// ---- launches

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z,
                        unsigned dynamic_shared_bytes, CUstream handle, void** arguments,
                        void** packed) {
    const Kernel& kernel = *reinterpret_cast<Kernel*>(function);
    if (packed)
        return complain(kernel, "arguments in a packed buffer are not supported",
                        CUDA_ERROR_NOT_SUPPORTED);
    const Launch launch{kernel.name,
                        kernel.entry,
                        arguments,
                        {grid_x, grid_y, grid_z},
                        {block_x, block_y, block_z},
                        dynamic_shared_bytes,
                        kernel.shared_begin,
                        kernel.shared_end,
                        current_device(),
                        thread_order()};
    Stream& stream = stream_of(handle);
    count(kKernelLaunches);
    const CUresult refused = check(kernel, launch, stream);
    if (refused != CUDA_SUCCESS) return refused;
    if (!late_streams_are_on) return run(kernel, launch);
    const auto kept = std::make_shared<KeptArguments>(kernel, arguments);
    // The numbers of the two kinds of errors are the same.
    return static_cast<CUresult>(enqueue(stream,
                                         [&kernel, kept, launch] {
                                             Launch later = launch;
                                             later.arguments = kept->addresses.data();
                                             return static_cast<cudaError_t>(run(kernel, later));
                                         },
                                         {}));
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
    const Kernel& kernel = *reinterpret_cast<Kernel*>(function);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = kernel.launch_bound ? kernel.launch_bound : kMaxThreadsPerBlock;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:  // of the whole module, so it may be too much
        *value = kernel.shared_end - kernel.shared_begin;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = compute_capability(); break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = kernel.max_dynamic_shared; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    if (value < 0 || value > static_cast<int>(kSharedBytesPerBlockOptIn))
        return CUDA_ERROR_INVALID_VALUE;
    reinterpret_cast<Kernel*>(function)->max_dynamic_shared = value;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) {
    *blocks = 1;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int* blocks, int* threads, CUfunction, CUoccupancyB2DSize,
                                          size_t, int limit) {
    const int most = kMaxThreadsPerBlock;
    *blocks = 4;
    *threads = limit > 0 ? std::min(limit, most) : most;
    return CUDA_SUCCESS;
}
}
