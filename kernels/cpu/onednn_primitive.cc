#include "kernels/cpu/onednn_primitive.h"

#include "common/base/check.h"
#include "kernels/cpu/cpu_context.h"

namespace starring {

OnednnPrimitive::OnednnPrimitive(CpuContext* context, dnnl::primitive primitive, const dnnl::memory::desc& scratchpad,
                                 const std::vector<Argument>& arguments)
    : context_(context), primitive_(std::move(primitive)), scratch_bytes_(static_cast<int64_t>(scratchpad.get_size())) {
  std::vector<Argument> all = arguments;
  all.emplace_back(DNNL_ARG_SCRATCHPAD, scratchpad);
  memories_.reserve(all.size());
  for (const auto& [name, description] : all) {
    // These objects have no memory of their own: Run sets the pointers, which differ from call to call.
    memories_.emplace_back(description, context->engine, static_cast<void*>(DNNL_MEMORY_NONE));
    arguments_.push_back({name, memories_.back().get()});
  }
}

void OnednnPrimitive::Run(std::initializer_list<const void*> pointers, void* scratch) {
  CHECK_EQ(pointers.size() + 1, memories_.size());
  size_t i = 0;
  for (const void* pointer : pointers) {
    // oneDNN's interface has no pointer to const. It writes only to arguments that were described as outputs.
    dnnl_memory_set_data_handle(memories_[i++].get(), const_cast<void*>(pointer));
  }
  dnnl_memory_set_data_handle(memories_[i].get(), scratch);
  // oneDNN asks OpenMP for the number of threads at every execution, and cuts its sums by it.
  const ThreadCountScope threads(context_->threads);
  // An error here is ours: shapes and formats were checked when the primitive was made.
  CHECK_EQ(dnnl_primitive_execute(primitive_.get(), context_->stream.get(), static_cast<int>(arguments_.size()),
                                  arguments_.data()),
           dnnl_success);
}

dnnl::primitive_attr OnednnAttributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

OnednnReorder::OnednnReorder(CpuContext* context, const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
  // A reorder between equal formats would be a copy of the whole tensor.
  if (from == to) return;
  const dnnl::reorder::primitive_desc description(context->engine, from, context->engine, to, OnednnAttributes());
  primitive_ = OnednnPrimitive(context, description, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

}  // namespace starring
