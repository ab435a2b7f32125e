#include "worker/exchange/star/star_exchange.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/arithmetic/array_passes.h"
#include "common/arithmetic/optimizer.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/host/machine_limits.h"
#include "common/job/leaf_shares.h"
#include "common/network/address.h"
#include "common/reduce/owner_map.h"
#include "common/wire/grpc_transport.h"
#include "common/wire/shared_memory.h"
#include "worker/exchange/star/star_client.h"

namespace starring {
namespace {

using v1::ExchangeMessage;

std::shared_ptr<grpc::Channel> OpenLaneChannel(const std::string& address, const TransportSecurity& security) {
  grpc::ChannelArguments arguments;
  // Workers and servers start together, and a lane that lost its connection should soon have the next one. gRPC's own
  // first pause is a second.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // In spite of its name, this is how long one attempt to connect may take. A TLS handshake needs several round trips,
  // and a lost packet of TCP's own handshake costs a second.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return OpenChannel(address, security, arguments);
}

class StarExchange final : public GradientExchange, private Snapshots {
 public:
  explicit StarExchange(StarOptions options) : options_(std::move(options)) {}

  // The qualified name says that a destructor calls no override. Release always returns true here.
  ~StarExchange() override { (void)StarExchange::Release(); }

  absl::Status Start(const JobSpec& job, std::span<float> parameters) override;
  const ExchangeMemory& memory() const override { return memory_; }
  void Submit(const Submission& submission) override;
  absl::Status Await(int64_t round, int bucket) override;
  absl::Status Sum(SumPurpose purpose, std::span<double> values) override;
  absl::Status GatherOptimizerState(std::span<const std::span<float>> state) override;
  void Abort(const absl::Status& why) override;
  [[nodiscard]] bool Release() override;
  absl::Status Finish() override;
  ExchangeCounters counters() const override;
  ExchangeFacts facts() const override { return {.owners = owners(), .choice = {}, .same_host_reason = {}}; }
  Snapshots* snapshots() override { return this; }

 private:
  void SubmitSideValues(int64_t step, const std::vector<double>& values) override;
  absl::StatusOr<std::vector<double>> FetchSideValues() override;
  void BeginRead(int64_t step, const std::shared_ptr<std::vector<std::vector<float>>>& state) override;
  bool HasRead() override { return client_->IsOver(StarRequest::kSnapshot); }
  absl::Status AwaitRead() override { return client_->Wait(StarRequest::kSnapshot); }
  absl::Status Leave() override;

  OwnerMap owners() const { return OwnerMap::ShardRanges(shard_count()); }
  int shard_count() const { return static_cast<int>(options_.addresses.size()); }
  // Calls visit(shard, range of the parameter vector) for the shards that own something of `bucket`.
  template <typename Visit>
  void ForEachSlice(int bucket, Visit visit) const {
    // Workers begin at different shards. Otherwise all of them would send to the link of shard 0 first, then to that of
    // shard 1, while the links of the other shards are idle.
    const int first = static_cast<int>(int64_t{job_.rank} * shard_count() / job_.world_size);
    for (int i = 0; i < shard_count(); ++i) {
      const int shard = (first + i) % shard_count();
      const ElementRange slice = owners().RangeOf(job_.buckets.sum(bucket), shard);
      // A short bucket may have nothing for some shards. They get no request, and the server does not wait for any
      // (ContributionSum::CountStep).
      if (slice.size() > 0) visit(shard, slice);
    }
  }
  std::unique_ptr<StarRequest> MakeRequest(ExchangeMessage::Kind kind, int shard, int64_t step, int bucket) const;
  // The answer to `request` will be the parameters of `slice`.
  void ExpectParameters(ElementRange slice, StarRequest* request);
  absl::Status ShareMemory();
  // One SHARE to shards [begin, end). Returns their answers.
  absl::StatusOr<std::vector<v1::SharedMemory>> AskToShare(int begin, int end, const v1::ExchangeMessage& fields);
  absl::Status DistributeParameters();

  const StarOptions options_;
  JobSpec job_;
  std::span<float> parameters_;
  int node_count_ = 1;                             // of this worker's share
  std::unique_ptr<SharedMemory> gradient_memory_;  // an array for each node; both are set, or neither
  std::unique_ptr<SharedMemory> parameter_memory_;
  ExchangeMemory memory_;   // empty, or in both
  std::string not_shared_;  // why memory_ is empty, if sharing was tried
  int64_t next_sum_ = 0;
  bool over_ = false;
  std::unique_ptr<StarClient> client_;
};

std::unique_ptr<StarRequest> StarExchange::MakeRequest(ExchangeMessage::Kind kind, int shard, int64_t step,
                                                       int bucket) const {
  auto request = std::make_unique<StarRequest>();
  request->shard = shard;
  // A bucket always uses the same lane. So every lane carries its buckets in ascending order on every worker, and a
  // full lane never waits for a bucket that another worker's full lane holds back.
  request->lane = bucket % options_.lanes;
  request->fields.set_kind(kind);
  request->fields.set_step(step);
  request->fields.set_bucket(bucket);
  return request;
}

absl::Status StarExchange::Start(const JobSpec& job, std::span<float> parameters) {
  CHECK(client_ == nullptr) << "Start is called once";
  CHECK_EQ(static_cast<int64_t>(parameters.size()), job.buckets.element_count());
  job_ = job;
  parameters_ = parameters;
  node_count_ = static_cast<int>(ShareOf(job.rank, LeafOwnersOf(job)).size());

  // Before it dials: a cut must leave a worker's connection to its coordinator, which has the address of shard 0.
  std::set<std::string> others;
  if (options_.superseded != nullptr) others = OwnConnections();
  StarClient::Options client{.shards = {},
                             .run_id = options_.run_id,
                             .security = options_.security,
                             .others = std::move(others),
                             .trace = options_.trace,
                             .stall = options_.stall,
                             .superseded = options_.superseded};
  for (const std::string& address : options_.addresses) {
    client.shards.push_back({.address = address, .lanes = {}});
    for (int lane = 0; lane < options_.lanes; ++lane) {
      client.shards.back().lanes.push_back(OpenLaneChannel(address, options_.security));
    }
  }
  ASSIGN_OR_RETURN(client_, StarClient::Join(job, std::move(client)));
  // This comes before the parameters are distributed: each request says whether its answer is to be in shared memory.
  if (options_.same_host == SameHost::kSharedMemory) RETURN_IF_ERROR(ShareMemory());
  const absl::Status status = DistributeParameters();
  job_.optimizer_state.clear();  // the caller's spans need not outlive Start
  return status;
}

// Shard 0 creates the memory for parameters when it opens the worker's; the other shards are then told of both. It is
// no error if memory cannot be shared with every shard: arrays then go through the socket, and the record says why.
absl::Status StarExchange::ShareMemory() {
  const int64_t element_count = job_.buckets.element_count();
  auto gradients = SharedMemory::Create(node_count_ * element_count);
  const auto refuse = [this](absl::string_view why) {
    not_shared_ = std::string(why);
    return absl::OkStatus();
  };
  const auto cannot_map = [this](int shard) {
    return absl::StrCat("server ", options_.addresses[shard], " (shard ", shard,
                        ") cannot map this worker's memory: it is on another host, in another container or of another "
                        "user, or has no memory left");
  };
  if (!gradients.ok()) return refuse(gradients.status().message());
  ExchangeMessage fields;
  *fields.mutable_gradient_memory() = (*gradients)->where();
  ASSIGN_OR_RETURN(const std::vector<v1::SharedMemory> first, AskToShare(0, 1, fields));
  if (first[0].nonce() == 0) return refuse(cannot_map(0));
  auto parameters = SharedMemory::Open(first[0], element_count, SharedMemory::Access::kRead);
  if (!parameters.ok()) return refuse(parameters.status().message());
  *fields.mutable_parameter_memory() = first[0];
  ASSIGN_OR_RETURN(const std::vector<v1::SharedMemory> others, AskToShare(1, shard_count(), fields));
  // A shard that cannot map the memory answers without it; the number is 0 then. One such shard is enough for the
  // socket: gradients and parameters are one array each, which all shards share or none.
  const auto differs = [&](const v1::SharedMemory& other) { return other.nonce() != first[0].nonce(); };
  const auto odd = std::ranges::find_if(others, differs);
  if (odd != others.end()) return refuse(cannot_map(1 + static_cast<int>(odd - others.begin())));
  gradient_memory_ = *std::move(gradients);
  parameter_memory_ = *std::move(parameters);
  for (int node = 0; node < node_count_; ++node) {
    memory_.gradients.push_back(gradient_memory_->writable_values().subspan(node * element_count, element_count));
  }
  memory_.parameters = parameter_memory_->values();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::SharedMemory>> StarExchange::AskToShare(int begin, int end,
                                                                       const ExchangeMessage& fields) {
  // The vector has its full length from the start, because each request points to its element. Wait returns an error
  // only when no request is left, so nothing is written here after that.
  std::vector<v1::SharedMemory> answers(end - begin);
  std::vector<std::unique_ptr<StarRequest>> requests;
  for (int shard = begin; shard < end; ++shard) {
    requests.push_back(MakeRequest(ExchangeMessage::SHARE, shard, 0, 0));
    requests.back()->fields.MergeFrom(fields);
    requests.back()->parameter_memory = &answers[shard - begin];
  }
  client_->Post(std::move(requests));
  RETURN_IF_ERROR(client_->Wait(StarRequest::kNoBucket));
  return answers;
}

// Rank 0 sends its parameters and optimizer state, the others fetch the parameters.
absl::Status StarExchange::DistributeParameters() {
  std::vector<std::unique_ptr<StarRequest>> requests;
  const int64_t step = job_.first_step - 1;
  for (int b = 0; b < job_.buckets.bucket_count(); ++b) {
    ForEachSlice(b, [&](int shard, ElementRange slice) {
      if (job_.rank != 0 || job_.owners_have_parameters) {
        requests.push_back(MakeRequest(ExchangeMessage::FETCH_PARAMETERS, shard, step, b));
        ExpectParameters(slice, requests.back().get());
        return;
      }
      // The state goes first, because other workers may contribute as soon as they have the parameters.
      for (size_t i = 0; i < job_.optimizer_state.size(); ++i) {
        requests.push_back(MakeRequest(ExchangeMessage::INITIAL_STATE, shard, step, b));
        requests.back()->fields.set_vector(static_cast<int>(i));
        requests.back()->payload = BytesOf(job_.optimizer_state[i], slice);
      }
      requests.push_back(MakeRequest(ExchangeMessage::INITIAL_PARAMETERS, shard, step, b));
      requests.back()->payload = BytesOf(std::span<const float>(parameters_), slice);
    });
  }
  client_->Post(std::move(requests));
  return client_->Wait(StarRequest::kNoBucket);
}

void StarExchange::ExpectParameters(ElementRange slice, StarRequest* request) {
  if (parameter_memory_ == nullptr) {
    request->destination = BytesOf(parameters_, slice);
  } else {
    request->fields.set_shared(true);
    request->shared_answer_bytes = slice.size() * static_cast<int64_t>(sizeof(float));
  }
}

void StarExchange::Submit(const Submission& submission) {
  const int bucket = submission.bucket;
  const std::span<const float> gradient = submission.gradient;
  const int node = submission.node == Submission::kLastNode ? node_count_ - 1 : submission.node;
  const ElementRange range = job_.buckets.bucket(bucket);
  CHECK_EQ(static_cast<int64_t>(gradient.size()), range.size());
  if (!memory_.gradients.empty()) {
    const std::span<float> place = memory_.gradients[node].subspan(range.begin, range.size());
    // The trainer has written elsewhere. The copy goes past the caches, as the servers read it on other cores, and is
    // complete before any server is told of it.
    if (gradient.data() != place.data()) StreamCopy(gradient, place);
  }
  std::vector<std::unique_ptr<StarRequest>> requests;
  ForEachSlice(bucket, [&](int shard, ElementRange slice) {
    requests.push_back(MakeRequest(ExchangeMessage::GRADIENT, shard, submission.round, bucket));
    // With shared memory the payload does not travel. Lane::WriteNext only counts it.
    StarRequest& request = *requests.back();
    request.fields.set_node(node);
    request.payload = BytesOf(gradient, {slice.begin - range.begin, slice.end - range.begin});
    request.group = bucket;
    request.more_nodes_follow = node < node_count_ - 1;
    if (!request.more_nodes_follow) {
      ExpectParameters(slice, &request);
    } else if (parameter_memory_ != nullptr) {
      request.fields.set_shared(true);
    }
  });
  client_->Post(std::move(requests));
}

// That the steps follow each other is checked where they begin (InFlightBuckets) and where they end (the server).
absl::Status StarExchange::Await(int64_t, int bucket) { return client_->Wait(bucket); }

absl::Status StarExchange::Sum(SumPurpose purpose, std::span<double> values) {
  CHECK_LE(static_cast<int64_t>(values.size()), kSumValuesMax);
  // `values` takes the answer while gRPC may still hold the payload, so the payload is a copy.
  const std::vector<double> mine(values.begin(), values.end());
  std::vector<std::unique_ptr<StarRequest>> requests;
  // All sums go to shard 0. The number of the sum tells the shard a repeat from the next one.
  requests.push_back(MakeRequest(ExchangeMessage::SUM, 0, next_sum_++, 0));
  requests.back()->fields.set_sum_purpose(static_cast<int>(purpose));
  requests.back()->payload = std::as_bytes(std::span(mine));
  requests.back()->destination = std::as_writable_bytes(values);
  client_->Post(std::move(requests));
  return client_->Wait(StarRequest::kNoBucket);
}

absl::Status StarExchange::GatherOptimizerState(std::span<const std::span<float>> state) {
  // The state does not change meanwhile: no step can be completed without rank 0, which has no bucket in flight.
  std::vector<std::unique_ptr<StarRequest>> requests;
  if (job_.rank == 0) {
    CHECK_EQ(static_cast<int>(state.size()), StateVectorCount(job_.optimizer));
    for (int b = 0; b < job_.buckets.bucket_count(); ++b) {
      ForEachSlice(b, [&](int shard, ElementRange slice) {
        for (size_t i = 0; i < state.size(); ++i) {
          requests.push_back(MakeRequest(ExchangeMessage::FETCH_STATE, shard, 0, b));
          requests.back()->lane = 0;  // one answer at a time, because the shard copies its state for each
          requests.back()->fields.set_vector(static_cast<int>(i));
          requests.back()->destination = BytesOf(state[i], slice);
        }
      });
    }
  }
  // The other ranks ask for nothing, and their Wait returns at once.
  client_->Post(std::move(requests));
  return client_->Wait(StarRequest::kNoBucket);
}

void StarExchange::SubmitSideValues(int64_t step, const std::vector<double>& values) {
  std::vector<std::unique_ptr<StarRequest>> requests;
  requests.push_back(MakeRequest(ExchangeMessage::SIDE_VALUES, 0, step, 0));
  StarRequest& request = *requests.back();
  // With them shard 0 has the whole snapshot, so they come there before any request to read it.
  request.lane = 0;
  // The request keeps what it sends.
  const auto kept = std::make_shared<const std::vector<double>>(values);
  request.payload = std::as_bytes(std::span(*kept));
  request.payload_use = kept;
  client_->Post(std::move(requests));
}

absl::StatusOr<std::vector<double>> StarExchange::FetchSideValues() {
  std::vector<double> values;
  // An answer's length must be known, so they come in blocks, each of which begins with the number of all.
  std::array<double, kSideValuesBlock> block = {};
  do {
    std::vector<std::unique_ptr<StarRequest>> requests;
    requests.push_back(MakeRequest(ExchangeMessage::FETCH_SIDE_VALUES, 0, std::ssize(values), 0));
    requests.back()->destination = std::as_writable_bytes(std::span(block));
    client_->Post(std::move(requests));
    RETURN_IF_ERROR(client_->Wait(StarRequest::kNoBucket));
    // A length that is negative or NaN counts as 0. FromValues then refuses the empty history.
    const auto left = static_cast<size_t>(std::max(0.0, block[0])) - values.size();
    values.insert(values.end(), block.begin() + 1, block.begin() + 1 + std::min(left, block.size() - 1));
  } while (static_cast<double>(values.size()) < block[0]);
  return values;
}

void StarExchange::BeginRead(int64_t step, const std::shared_ptr<std::vector<std::vector<float>>>& state) {
  std::vector<std::unique_ptr<StarRequest>> requests;
  for (int b = 0; b < job_.buckets.bucket_count(); ++b) {
    ForEachSlice(b, [&](int shard, ElementRange slice) {
      for (size_t i = 0; i < state->size(); ++i) {
        requests.push_back(MakeRequest(ExchangeMessage::FETCH_STATE, shard, step, b));
        StarRequest& request = *requests.back();
        // The side values use this lane too, and come to shard 0 first. The shard copies its state for one answer at a
        // time.
        request.lane = 0;
        request.group = StarRequest::kSnapshot;
        request.fields.set_vector(static_cast<int>(i));
        request.destination = BytesOf(std::span<float>((*state)[i]), slice);
        request.destination_keeper = state;
      }
    });
  }
  client_->Post(std::move(requests));
}

absl::Status StarExchange::Leave() {
  RETURN_IF_ERROR(client_->Wait(StarRequest::kNoBucket));
  over_ = true;
  client_->Close();
  return absl::OkStatus();
}

void StarExchange::Abort(const absl::Status& why) {
  // The coordinator of an elastic run hears of it by another way, and nothing may be waited for here.
  if (options_.superseded != nullptr) over_ = true;
  if (client_ == nullptr || std::exchange(over_, true)) return;
  client_->Abort(why);
}

// gRPC reads gradients from the worker's memory. The client's destructor waits until gRPC has let go of it.
bool StarExchange::Release() {
  Abort(absl::CancelledError("it ended before the job was finished"));
  client_.reset();
  return true;
}

absl::Status StarExchange::Finish() {
  std::vector<std::unique_ptr<StarRequest>> requests;
  for (int shard = 0; shard < shard_count(); ++shard) {
    requests.push_back(MakeRequest(ExchangeMessage::FINISH, shard, 0, 0));
  }
  client_->Post(std::move(requests));
  RETURN_IF_ERROR(client_->Wait(StarRequest::kNoBucket));
  // All shards have answered: from here on there is nothing to abort, even if closing the lanes takes long.
  over_ = true;
  client_->Close();
  return absl::OkStatus();
}

ExchangeCounters StarExchange::counters() const {
  if (client_ == nullptr) return {};
  return {.bytes_sent = client_->payload_bytes_sent(),
          .bytes_received = client_->payload_bytes_received(),
          .shared_memory = parameter_memory_ != nullptr,
          .not_shared = not_shared_};
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientExchange>> CreateStarExchange(const StarOptions& options) {
  if (options.addresses.empty() || static_cast<int>(options.addresses.size()) > kShardCountMax) {
    return absl::InvalidArgumentError(absl::StrCat(options.addresses.size(), " servers: give --servers between 1 and ",
                                                   kShardCountMax, " addresses, host:port, separated by commas"));
  }
  for (const std::string& address : options.addresses) {
    RETURN_IF_ERROR(ParseHostPort(address).status(), "--servers");
  }
  if (options.lanes < 1 || options.lanes > kLanesMax) {
    return absl::InvalidArgumentError(absl::StrCat(options.lanes, " lanes: between 1 and ", kLanesMax, " are allowed"));
  }
  const int64_t needed = WorkerDescriptors(static_cast<int64_t>(options.addresses.size()) * options.lanes);
  if (const int64_t may_open = RaiseDescriptorLimit(needed); may_open < needed) {
    return absl::InvalidArgumentError(absl::StrCat(options.addresses.size(), " servers with --lanes=", options.lanes,
                                                   " need ", needed, " descriptors, this process may open ", may_open,
                                                   ": raise the hard limit (ulimit -Hn), or lower --lanes"));
  }
  return std::make_unique<StarExchange>(options);
}

}  // namespace starring
