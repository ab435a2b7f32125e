// One oneDNN primitive with its memory objects, made once and run many times.
//
// oneDNN's C++ interface builds a hash map for every execution. This class calls the C interface with a table that it
// keeps. Inside dnnl_primitive_execute the library still makes a small map, some tens of bytes per argument, which a
// caller cannot avoid. Large temporaries are in the context's scratch memory (oneDNN's user scratchpad mode).
#ifndef STARRING_KERNELS_CPU_ONEDNN_PRIMITIVE_H_
#define STARRING_KERNELS_CPU_ONEDNN_PRIMITIVE_H_

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "dnnl.hpp"
#include "kernels/cpu/cpu_context.h"

namespace starring {

// Thread safety: one thread.
class OnednnPrimitive {
 public:
  using Argument = std::pair<int, dnnl::memory::desc>;  // DNNL_ARG_..., memory

  OnednnPrimitive() = default;  // none: Run must not be called
  // `description` was made with OnednnAttributes(). Throws dnnl::error.
  template <typename Description>
  OnednnPrimitive(CpuContext* context, const Description& description, const std::vector<Argument>& arguments)
      : OnednnPrimitive(context, dnnl::primitive(description.get()), description.scratchpad_desc(), arguments) {}

  // Pointers in the order of the constructor's arguments. `scratch` holds at least scratch_bytes().
  void Run(std::initializer_list<const void*> pointers, void* scratch);

  int64_t scratch_bytes() const { return scratch_bytes_; }
  explicit operator bool() const { return context_ != nullptr; }

 private:
  OnednnPrimitive(CpuContext* context, dnnl::primitive primitive, const dnnl::memory::desc& scratchpad,
                  const std::vector<Argument>& arguments);

  CpuContext* context_ = nullptr;
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;      // the last is the scratchpad
  std::vector<dnnl_exec_arg_t> arguments_;  // point into memories_
  int64_t scratch_bytes_ = 0;
};

// Attributes by which a primitive takes its scratchpad from the caller.
dnnl::primitive_attr OnednnAttributes();

// Copies a tensor from one memory format to another.
class OnednnReorder {
 public:
  OnednnReorder() = default;
  // Between equal formats needed() is false, and Run must not be called. Throws dnnl::error.
  OnednnReorder(CpuContext* context, const dnnl::memory::desc& from, const dnnl::memory::desc& to);

  bool needed() const { return static_cast<bool>(primitive_); }
  int64_t scratch_bytes() const { return primitive_.scratch_bytes(); }
  void Run(const void* from, void* to, void* scratch) { primitive_.Run({from, to}, scratch); }

 private:
  OnednnPrimitive primitive_;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_ONEDNN_PRIMITIVE_H_
