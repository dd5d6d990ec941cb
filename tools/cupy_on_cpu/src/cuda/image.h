// The format of a compiled module: a mark, the number of bytes, and a shared library.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace standin {

constexpr char kImageMark[16] = "STANDIN-CUBIN-2";
constexpr size_t kImageHeaderBytes = sizeof kImageMark + sizeof(uint64_t);

inline std::string make_image(const std::string& library) {
    const uint64_t bytes = library.size();
    std::string image(kImageMark, sizeof kImageMark);
    image.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    return image + library;
}

inline bool is_image(const char* image) {
    return memcmp(image, kImageMark, sizeof kImageMark) == 0;
}

inline const char* image_library(const char* image) { return image + kImageHeaderBytes; }

inline uint64_t image_library_bytes(const char* image) {
    uint64_t bytes;
    memcpy(&bytes, image + sizeof kImageMark, sizeof bytes);
    return bytes;
}

}  // namespace standin
