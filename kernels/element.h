// How the elements of a tensor are stored, and pointers that say it.
//
// Plain structs, for host and device code.
#ifndef STARRING_KERNELS_ELEMENT_H_
#define STARRING_KERNELS_ELEMENT_H_

#include <cstdint>

#if defined(__CUDACC__)
#define STARRING_ELEMENT __host__ __device__ __forceinline__
#else
#define STARRING_ELEMENT inline
#endif

namespace starring {

// kBfloat16: the upper half of a float32. Arithmetic is in float32; a stored value is rounded once, to even.
enum class Element { kFloat32, kBfloat16 };
constexpr int64_t BytesOf(Element element) { return element == Element::kFloat32 ? 4 : 2; }

// The elements of a tensor in device memory, or null. A pointer to floats is one of kFloat32.
class ConstElements {
 public:
  ConstElements() = default;
  STARRING_ELEMENT ConstElements(const float* floats) : memory_(floats) {}  // NOLINT: a pointer is what a caller has
  STARRING_ELEMENT ConstElements(Element element, const void* memory) : memory_(memory), element_(element) {}

  STARRING_ELEMENT Element element() const { return element_; }
  STARRING_ELEMENT const void* data() const { return memory_; }
  STARRING_ELEMENT bool is_null() const { return memory_ == nullptr; }
  // REQUIRES: T is how element() is stored.
  template <typename T>
  STARRING_ELEMENT const T* As() const {
    return static_cast<const T*>(memory_);
  }
  // REQUIRES: kFloat32, or null: ends the process otherwise. A device without other elements refuses them earlier, when
  // it creates an operation.
  const float* floats() const {
    if (element_ != Element::kFloat32 && memory_ != nullptr) __builtin_trap();
    return As<float>();
  }
  // The elements from `index` on. REQUIRES: not null.
  ConstElements From(int64_t index) const {
    return {element_, static_cast<const char*>(memory_) + index * BytesOf(element_)};
  }
  friend bool operator==(const ConstElements&, const ConstElements&) = default;

 private:
  const void* memory_ = nullptr;
  Element element_ = Element::kFloat32;
};

class Elements {
 public:
  Elements() = default;
  STARRING_ELEMENT Elements(float* floats) : memory_(floats) {}  // NOLINT
  STARRING_ELEMENT Elements(Element element, void* memory) : memory_(memory), element_(element) {}
  STARRING_ELEMENT operator ConstElements() const { return {element_, memory_}; }  // NOLINT

  STARRING_ELEMENT Element element() const { return element_; }
  STARRING_ELEMENT void* data() const { return memory_; }
  STARRING_ELEMENT bool is_null() const { return memory_ == nullptr; }
  template <typename T>
  STARRING_ELEMENT T* As() const {
    return static_cast<T*>(memory_);
  }
  float* floats() const {
    if (element_ != Element::kFloat32 && memory_ != nullptr) __builtin_trap();
    return As<float>();
  }

 private:
  void* memory_ = nullptr;
  Element element_ = Element::kFloat32;
};

}  // namespace starring

#endif  // STARRING_KERNELS_ELEMENT_H_
