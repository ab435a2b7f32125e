#include "deploy/launch/run_state.h"

#include "server/elastic/generation_log.h"

namespace starring {

std::string UnfinishedRun(const std::string& folder) {
  const GenerationLog::Glimpse seen = GenerationLog::Peek(folder);
  return seen.progress == GenerationLog::Progress::kEnded ? "" : seen.name;
}

}  // namespace starring
