#include "common/job/job_spec.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/job/leaf_shares.h"
#include "proto/starring/v1/job.pb.h"

namespace starring {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

v1::OptimizerConfig ToProto(const OptimizerConfig& config) {
  v1::OptimizerConfig proto;
  proto.set_kind(config.kind == OptimizerKind::kSgd ? v1::OptimizerConfig::SGD : v1::OptimizerConfig::ADAMW);
  proto.set_momentum(config.momentum);
  proto.set_nesterov(config.nesterov);
  proto.set_weight_decay(config.weight_decay);
  proto.set_beta1(config.beta1);
  proto.set_beta2(config.beta2);
  proto.set_epsilon(config.epsilon);
  proto.set_clip_norm(config.clip_norm);
  return proto;
}

v1::LearningRateSchedule ToProto(const LearningRateSchedule& schedule) {
  v1::LearningRateSchedule proto;
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      proto.set_kind(v1::LearningRateSchedule::CONSTANT);
      break;
    case ScheduleKind::kStep:
      proto.set_kind(v1::LearningRateSchedule::STEP);
      break;
    case ScheduleKind::kCosine:
      proto.set_kind(v1::LearningRateSchedule::COSINE);
      break;
  }
  proto.set_base(schedule.base);
  proto.set_warmup_steps(schedule.warmup_steps);
  proto.set_decay_steps(schedule.decay_steps);
  proto.set_gamma(schedule.gamma);
  proto.set_total_steps(schedule.total_steps);
  return proto;
}

absl::StatusOr<OptimizerConfig> FromProto(const v1::OptimizerConfig& proto) {
  OptimizerConfig config = {.momentum = proto.momentum(),
                            .nesterov = proto.nesterov(),
                            .weight_decay = proto.weight_decay(),
                            .beta1 = proto.beta1(),
                            .beta2 = proto.beta2(),
                            .epsilon = proto.epsilon(),
                            .clip_norm = proto.clip_norm()};
  switch (proto.kind()) {
    case v1::OptimizerConfig::SGD:
      config.kind = OptimizerKind::kSgd;
      break;
    case v1::OptimizerConfig::ADAMW:
      config.kind = OptimizerKind::kAdamW;
      break;
    default:
      // proto3 hands over a number that this build does not know: a newer peer may have sent it.
      return absl::InvalidArgumentError(absl::StrCat("optimizer.kind is ", proto.kind(), ", this build knows 0 and 1"));
  }
  RETURN_IF_ERROR(ValidateOptimizer(config), "optimizer");
  return config;
}

absl::StatusOr<LearningRateSchedule> FromProto(const v1::LearningRateSchedule& proto) {
  LearningRateSchedule schedule = {.base = proto.base(),
                                   .warmup_steps = proto.warmup_steps(),
                                   .decay_steps = proto.decay_steps(),
                                   .gamma = proto.gamma(),
                                   .total_steps = proto.total_steps()};
  switch (proto.kind()) {
    case v1::LearningRateSchedule::CONSTANT:
      schedule.kind = ScheduleKind::kConstant;
      break;
    case v1::LearningRateSchedule::STEP:
      schedule.kind = ScheduleKind::kStep;
      break;
    case v1::LearningRateSchedule::COSINE:
      schedule.kind = ScheduleKind::kCosine;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("schedule.kind is ", proto.kind(), ", this build knows 0 to 2"));
  }
  RETURN_IF_ERROR(ValidateSchedule(schedule), "schedule");
  return schedule;
}

// The shortest text that reads back to the same double. With fewer digits two values could differ and print alike: the
// message would name two equal values.
std::string Exact(double value) {
  char text[32];
  const auto result = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, result.ptr);
}

// A field's value as people write it. By reflection, so that a field added to job.proto is compared without further
// code.
std::string ValueOf(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Exact(reflection->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = reflection->GetEnumValue(message, field);
      const auto* value = field->enum_type()->FindValueByNumber(number);
      return value == nullptr ? absl::StrCat(number) : value->name();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->GetString(message, field);
    default:
      CHECK(false) << "job.proto has a field of a type that is not compared: " << field->full_name();
  }
  return {};
}

struct Difference {
  std::string name, value_a, value_b;
};

// The first scalar field, in the order of the .proto, whose values differ; an empty name if none does.
Difference FirstDifference(const Message& a, const Message& b, const std::string& prefix) {
  for (int i = 0; i < a.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = a.GetDescriptor()->field(i);
    if (field->is_repeated()) continue;  // the flags, which are compared by name
    const std::string name = prefix + field->name();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Difference inner =
          FirstDifference(a.GetReflection()->GetMessage(a, field), b.GetReflection()->GetMessage(b, field), name + ".");
      if (!inner.name.empty()) return inner;
      continue;
    }
    const std::string value_a = ValueOf(a, field), value_b = ValueOf(b, field);
    if (value_a != value_b) return {name, value_a, value_b};
  }
  return {};
}

// See JobSpec::agreed_flags.
bool IsFact(const std::string& flag) { return flag.find('.') != std::string::npos; }

// Flags are compared by name, because two builds may list their flags in another order.
Difference FirstFlagDifference(const v1::JobAgreement& a, const v1::JobAgreement& b) {
  std::map<std::string, std::string> flags_a, flags_b;
  for (const v1::FlagValue& flag : a.flags()) flags_a[flag.flag()] = flag.value();
  for (const v1::FlagValue& flag : b.flags()) flags_b[flag.flag()] = flag.value();
  // Flags are compared before facts: a different --dataset explains a different checksum.
  for (const bool facts : {false, true}) {
    const std::string dashes = facts ? "" : "--";
    for (const auto& [flag, value] : flags_a) {
      if (IsFact(flag) != facts) continue;
      const auto other = flags_b.find(flag);
      if (other == flags_b.end()) return {dashes + flag, value, "(no such flag)"};
      if (other->second != value) return {dashes + flag, value, other->second};
    }
    // The loop above has compared all flags that both have. This one finds the flags that only `b` has.
    for (const auto& [flag, value] : flags_b) {
      if (IsFact(flag) == facts && !flags_a.contains(flag)) return {dashes + flag, "(no such flag)", value};
    }
  }
  return {};
}

// The user's remedy for a difference in `name`. For a fact that the process has found out, it is the setting that
// decides the fact.
std::string WayOut(const std::string& name) {
  if (name == "layout_hash" || name == "element_count")
    return "start all workers with the same --model and the same build";
  if (name == "--model")
    return "give all workers the same layer file, by whatever path: the digest is that of its layers";
  if (absl::StartsWith(name, "environment.")) {
    return "it changes what libraries compute: set it alike for all workers, or unset it";
  }
  if (name == "first_step") return "resume all workers from the same checkpoint, or none";
  if (name == "bucket_bytes") {
    return "give all workers the same --bucket_bytes; without it a star's workers choose by whether they reach the "
           "servers at loopback addresses, so give all of them the same --servers";
  }
  if (absl::StartsWith(name, "data.")) {
    return "give all workers the same files in --data_dir, or the same --synthetic_ flags";
  }
  if (absl::StartsWith(name, "checkpoint.")) {
    return "give all workers the same checkpoint, and while a training writes there one of the folders in it";
  }
  if (name == "arithmetic.libc") {
    return "another C library may compute other bits: start all workers from one bundle, with --libc=own";
  }
  if (name == "arithmetic.libm") {
    return "the C library computes other bits on another processor: give all workers the same release of it (in a "
           "bundle by --libc=own), and GLIBC_TUNABLES=glibc.cpu.hwcaps=-FMA,-FMA4 in their environment";
  }
  if (absl::StartsWith(name, "arithmetic.")) {
    return "they would compute other bits: give all workers the same --isa, the lowest of theirs, and start all from "
           "one bundle, which brings its libraries";
  }
  if (absl::StartsWith(name, "known_answer.")) {
    return "one of the machines computes other bits than the others from the same data: give all workers "
           "--isa=baseline, and test the memory of the one that still differs";
  }
  if (name == "--conv") {
    return "with --conv=auto a worker takes cuDNN where it finds it: install it for all workers, or give all of them "
           "--conv=own";
  }
  if (absl::StartsWith(name, "cudnn.")) {
    return "give all workers the same cuDNN and GPUs of one model, or --conv=own";
  }
  if (name == "chunk_bytes" || name == "deterministic") return "start all workers from the same build";
  if (name == "world_size") return "start all workers with the same --world_size";
  return "start all workers with the same flags";
}

// Whether a newer build has sent fields that this build would not compare. `proto` is a copy, because asking discards
// the fields.
bool HasUnknownFields(v1::JobAgreement proto) {
  const size_t with_unknown = proto.ByteSizeLong();
  proto.DiscardUnknownFields();
  return proto.ByteSizeLong() != with_unknown;
}

// Only malformed bytes fail here. A field that is missing is 0, which the checks of values refuse where 0 is no value.
absl::StatusOr<v1::JobAgreement> ParseProto(const std::string& bytes) {
  v1::JobAgreement proto;
  if (proto.ParseFromString(bytes)) return proto;
  return absl::InvalidArgumentError(
      absl::StrCat(bytes.size(), " bytes that are no job agreement: start all processes from the same build"));
}

// Every rank owns a leaf at least.
absl::Status ParseLeafOwners(const v1::JobAgreement& proto, Agreement* agreement) {
  // The number of ranks is another process's, and must not decide how much memory is taken.
  std::vector<int> leaf_count(static_cast<size_t>(std::max(0, std::min(proto.world_size(), kMicroBatchesMax))));
  for (const absl::string_view text : absl::StrSplit(proto.leaf_owners(), ',', absl::SkipEmpty())) {
    int owner = -1;
    if (!absl::SimpleAtoi(text, &owner) || owner < 0 || owner >= std::ssize(leaf_count) ||
        std::ssize(agreement->leaf_owners) >= kMicroBatchesMax) {
      return absl::InvalidArgumentError(absl::StrCat("leaf_owners has \"", absl::CHexEscape(text.substr(0, 20)),
                                                     "\", ranks are below ", proto.world_size()));
    }
    agreement->leaf_owners.push_back(owner);
    ++leaf_count[static_cast<size_t>(owner)];
  }
  // Without a list the leaves are dealt evenly (LeafOwnersOf).
  if (agreement->leaf_owners.empty()) return absl::OkStatus();
  if (std::ssize(agreement->leaf_owners) != agreement->micro_batches || std::ranges::count(leaf_count, 0) > 0 ||
      std::ssize(leaf_count) != proto.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("leaf_owners has ", agreement->leaf_owners.size(), " of ",
                                                   agreement->micro_batches, " leaves, or a rank has none"));
  }
  return absl::OkStatus();
}

// For how many workers chunks are cut: the terms of an elastic run are the same with any number.
int ChunksFor(const std::vector<int>& leaf_owners, int world_size) { return leaf_owners.empty() ? world_size : 1; }

std::vector<int> OwnersOf(const std::vector<int>& leaf_owners, int micro_batches, int world_size) {
  return leaf_owners.empty() ? DealLeavesEvenly(micro_batches, world_size) : leaf_owners;
}

}  // namespace

std::vector<int> LeafOwnersOf(const JobSpec& job) {
  return OwnersOf(job.leaf_owners, job.micro_batches, job.world_size);
}

std::vector<int> LeafOwnersOf(const Agreement& agreement) {
  return OwnersOf(agreement.leaf_owners, agreement.micro_batches, agreement.world_size);
}

std::string SerializeAgreement(const JobSpec& job) {
  v1::JobAgreement proto;
  proto.set_world_size(job.world_size);
  proto.set_layout_hash(job.layout.hash());
  proto.set_element_count(job.layout.element_count());
  // The value is the one that the map has rounded: ranks that cut the vector alike agree, even if their flags differ.
  proto.set_bucket_bytes(job.buckets.bucket_bytes());
  proto.set_first_step(job.first_step);
  *proto.mutable_optimizer() = ToProto(job.optimizer);
  *proto.mutable_schedule() = ToProto(job.schedule);
  proto.set_sum_order(job.sum_order == SumOrder::kTree ? v1::JobAgreement::TREE : v1::JobAgreement::CHAIN);
  proto.set_deterministic(job.deterministic);
  proto.set_micro_batches(job.micro_batches);
  proto.set_leaf_owners(absl::StrJoin(job.leaf_owners, ","));
  proto.set_chunk_bytes(ChunkBytesFor(ChunksFor(job.leaf_owners, job.world_size)));
  for (const auto& [flag, value] : job.agreed_flags) {
    v1::FlagValue* pair = proto.add_flags();
    pair->set_flag(flag);
    pair->set_value(AsUtf8(value));
  }
  return proto.SerializeAsString();
}

absl::Status CompareAgreements(int rank_a, const std::string& a, int rank_b, const std::string& b) {
  // This is the common case: equal bytes have equal fields, known or not.
  if (a == b) return absl::OkStatus();
  ASSIGN_OR_RETURN(const v1::JobAgreement proto_a, ParseProto(a), "rank ", rank_a, " sent");
  ASSIGN_OR_RETURN(const v1::JobAgreement proto_b, ParseProto(b), "rank ", rank_b, " sent");
  // Flags are compared first: a different --model explains a different layout hash.
  Difference difference = FirstFlagDifference(proto_a, proto_b);
  if (difference.name.empty()) difference = FirstDifference(proto_a, proto_b, "");
  if (difference.name.empty()) {
    // All known fields are equal. The bytes may still differ by the order of the flags, or by an unknown field.
    if (!HasUnknownFields(proto_a) && !HasUnknownFields(proto_b)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_a, " and rank ", rank_b,
                                                   " send agreements that differ in a field this build does not know: "
                                                   "start all processes from the same build"));
  }
  // The first difference alone is named, because later ones often follow from it.
  return absl::InvalidArgumentError(absl::StrCat("rank ", rank_a, " has ", difference.name, "=", difference.value_a,
                                                 ", rank ", rank_b, " has ", difference.name, "=", difference.value_b,
                                                 ": ", WayOut(difference.name)));
}

absl::StatusOr<Agreement> ParseAgreement(const std::string& bytes) {
  ASSIGN_OR_RETURN(const v1::JobAgreement proto, ParseProto(bytes));
  Agreement agreement;
  agreement.world_size = proto.world_size();
  agreement.first_step = proto.first_step();
  agreement.layout_hash = proto.layout_hash();
  // The bytes come from the network, so each value is checked before anything is computed from it. BucketMap checks
  // those that it gets.
  if (agreement.world_size < 1 || agreement.world_size > kWorldSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size is ", agreement.world_size, ", it must be from 1 to ", kWorldSizeMax));
  }
  if (agreement.first_step < 0 || agreement.first_step > kStepMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_step is ", agreement.first_step, ", it must be from 0 to ", kStepMax));
  }
  ASSIGN_OR_RETURN(agreement.optimizer, FromProto(proto.optimizer()));
  // The worker's flags refuse it, too. A server that ignored it would train another job than the one asked for.
  if (agreement.optimizer.clip_norm > 0) {
    return absl::InvalidArgumentError(absl::StrCat("clip_norm is ", agreement.optimizer.clip_norm,
                                                   ", a server updates a bucket before it has the others: train "
                                                   "without servers, or without --clip_norm"));
  }
  ASSIGN_OR_RETURN(agreement.schedule, FromProto(proto.schedule()));
  switch (proto.sum_order()) {
    case v1::JobAgreement::CHAIN:
      agreement.sum_order = SumOrder::kChain;
      break;
    case v1::JobAgreement::TREE:
      agreement.sum_order = SumOrder::kTree;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("sum_order is ", proto.sum_order(), ", this build knows 0 and 1"));
  }
  agreement.micro_batches = proto.micro_batches();
  if (agreement.micro_batches != 0 &&
      (agreement.micro_batches < proto.world_size() || agreement.micro_batches > kMicroBatchesMax ||
       agreement.sum_order != SumOrder::kTree)) {
    return absl::InvalidArgumentError(absl::StrCat("micro_batches is ", agreement.micro_batches, ", it must be ",
                                                   proto.world_size(), ", the number of workers, to ", kMicroBatchesMax,
                                                   ", with sum_order TREE"));
  }
  RETURN_IF_ERROR(ParseLeafOwners(proto, &agreement));
  ASSIGN_OR_RETURN(agreement.buckets,
                   BucketMap::Create({.element_count = proto.element_count(), .bucket_bytes = proto.bucket_bytes()}));
  // Worker and server cut blocks and buckets independently. Another chunk would give them another order of sums, and
  // another rounding other slices.
  const int chunks_for = ChunksFor(agreement.leaf_owners, agreement.world_size);
  if (proto.chunk_bytes() != ChunkBytesFor(chunks_for)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk_bytes is ", proto.chunk_bytes(), ", this build adds in chunks of ", ChunkBytesFor(chunks_for), " with ",
        chunks_for, " workers: start all processes from the same build"));
  }
  if (agreement.buckets.bucket_bytes() != proto.bucket_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("bucket_bytes is ", proto.bucket_bytes(),
                                                   ", this build rounds it to ", agreement.buckets.bucket_bytes(),
                                                   ": start all processes from the same build"));
  }
  for (const v1::FlagValue& flag : proto.flags()) agreement.agreed_flags.emplace_back(flag.flag(), flag.value());
  return agreement;
}

}  // namespace starring
