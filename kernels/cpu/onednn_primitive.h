// One oneDNN primitive with its memory objects, made once and run many times.
//
// oneDNN's C++ interface builds a hash map for every execution; this goes through the C interface with a fixed table.
// (Inside dnnl_primitive_execute the library still makes a small map of its own, some tens of bytes per argument;
// nothing of ours can avoid that. Everything large lives in the context's scratch: user scratchpad mode.)
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

  OnednnPrimitive() = default;
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

// Attributes that leave the scratchpad to us.
dnnl::primitive_attr OnednnAttributes();

// Copies a tensor from one memory format to another.
class OnednnReorder {
 public:
  OnednnReorder() = default;
  // A reorder between equal formats is no reorder: needed() is false. Throws dnnl::error.
  OnednnReorder(CpuContext* context, const dnnl::memory::desc& from, const dnnl::memory::desc& to);

  bool needed() const { return static_cast<bool>(primitive_); }
  int64_t scratch_bytes() const { return primitive_.scratch_bytes(); }
  void Run(const void* from, void* to, void* scratch) { primitive_.Run({from, to}, scratch); }

 private:
  OnednnPrimitive primitive_;
};

}  // namespace starring

#endif  // STARRING_KERNELS_CPU_ONEDNN_PRIMITIVE_H_
