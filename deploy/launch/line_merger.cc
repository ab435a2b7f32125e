#include "deploy/launch/line_merger.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace starring {
namespace {

constexpr absl::string_view kEraseRow = "\r\033[K";

}  // namespace

int LineMerger::AddPrefixed(std::string prefix, OutputStream stream) {
  sources_.push_back({.prefix = std::move(prefix), .stream = stream, .live = false, .partial = ""});
  return static_cast<int>(sources_.size()) - 1;
}

int LineMerger::AddLive() {
  sources_.push_back({.prefix = "", .stream = OutputStream::kOut, .live = true, .partial = ""});
  return static_cast<int>(sources_.size()) - 1;
}

void LineMerger::Feed(int source_number, absl::string_view bytes) {
  Source& source = sources_[static_cast<size_t>(source_number)];
  if (source.live) return FeedLive(bytes);
  source.partial.append(bytes.data(), bytes.size());
  size_t begin = 0;
  for (size_t end; (end = source.partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
    EmitLine(source, absl::string_view(source.partial).substr(begin, end - begin));
  }
  for (; source.partial.size() - begin > kLineBytesMax; begin += kLineBytesMax) {
    EmitLine(source, absl::string_view(source.partial).substr(begin, kLineBytesMax));
  }
  source.partial.erase(0, begin);
}

void LineMerger::Close(int source_number) {
  Source& source = sources_[static_cast<size_t>(source_number)];
  if (source.live && !live_row_.empty()) FeedLive("\n");
  if (!source.partial.empty()) EmitLine(source, source.partial);
  source.partial.clear();
}

void LineMerger::Print(absl::string_view line) {
  EmitLine({.prefix = "", .stream = OutputStream::kErr, .live = false, .partial = ""}, line);
}

void LineMerger::EmitLine(const Source& source, absl::string_view line) {
  if (!live_row_.empty()) write_(OutputStream::kOut, kEraseRow);
  write_(source.stream, absl::StrCat(source.prefix, line, "\n"));
  if (!live_row_.empty()) write_(OutputStream::kOut, absl::StrCat(live_row_, live_row_complete_ ? "\r" : ""));
}

void LineMerger::FeedLive(absl::string_view bytes) {
  write_(OutputStream::kOut, bytes);
  for (const char c : bytes) {
    if (c == '\n') {
      live_row_.clear();
      live_row_complete_ = false;
    } else if (c == '\r') {
      live_row_complete_ = true;
    } else {
      if (live_row_complete_) live_row_.clear();
      live_row_complete_ = false;
      if (live_row_.size() < kLineBytesMax) live_row_ += c;
    }
  }
}

}  // namespace starring
