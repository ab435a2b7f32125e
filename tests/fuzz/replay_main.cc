// Runs a fuzz target as a test, without libFuzzer: on every file of a corpus, then on mutations of them for a second,
// always the same ones in the same order. bench/fuzz.py does the real search. A file of the corpus must reach what
// tests/fuzz/reached.txt says.
//
//   replay FOLDER REACHED [SECONDS]
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Null in a build without a sanitizer.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr size_t kInputBytesMax = 4096;
// An input that takes this long is a defect. A sanitizer and a busy machine may slow an input down tenfold.
constexpr std::chrono::seconds kInputTimeMax{10};

std::string g_input;  // the running input, for the two functions below

void WriteInput() {
  std::fprintf(stderr, "replay: the input was (hexadecimal, for xxd -r -p):\n");
  for (const char byte : g_input) std::fprintf(stderr, "%02x", static_cast<unsigned char>(byte));
  std::fprintf(stderr, "\n");
}

void OnSignal(int number) {
  WriteInput();
  signal(number, SIG_DFL);
  raise(number);
}

void Run(const std::string& input) {
  g_input = input;
  const Clock::time_point begin = Clock::now();
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(g_input.data()), g_input.size());
  CHECK(Clock::now() - begin < kInputTimeMax);
}

// The places that the files of a corpus must reach, by the file's name: the lines "TARGET/NAME: WORDS; WORDS" of the
// file at `path`.
std::map<std::string, std::vector<std::string>> ReadExpected(const fs::path& path, const std::string& target) {
  std::ifstream file(path);
  CHECK(file.is_open()) << path;
  std::map<std::string, std::vector<std::string>> expected;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(target + "/")) continue;
    const size_t colon = line.find(':');
    CHECK(colon != std::string::npos) << line;
    std::vector<std::string>& words = expected[line.substr(target.size() + 1, colon - target.size() - 1)];
    for (size_t begin = colon + 1, end; begin < line.size(); begin = end + 2) {
      end = std::min(line.find("; ", begin), line.size());
      begin = std::min(line.find_first_not_of(' ', begin), end);
      words.push_back(line.substr(begin, end - begin));
    }
  }
  return expected;
}

// Whether each of `expected` is a part of one of `reached`, in this order.
void CheckReached(const std::string& name, const std::vector<std::string>& expected,
                  const std::vector<std::string>& reached) {
  auto next = reached.begin();
  for (const std::string& words : expected) {
    next = std::find_if(next, reached.end(), [&](const std::string& one) { return one.find(words) != one.npos; });
    if (next == reached.end()) {
      for (const std::string& one : reached)
        std::fprintf(stderr, "replay: %s reaches: %s\n", name.c_str(), one.c_str());
    }
    CHECK(next != reached.end()) << name << " does not reach \"" << words
                                 << "\" after the ones before: has its format changed?";
    ++next;
  }
}

class Mutator {
 public:
  std::string Mutate(const std::vector<std::string>& corpus) {
    std::string input = corpus[Below(corpus.size())];
    for (size_t changes = 1 + Below(4); changes > 0; --changes) Change(input, corpus[Below(corpus.size())]);
    input.resize(std::min(input.size(), kInputBytesMax));
    return input;
  }

 private:
  size_t Below(size_t count) { return random_() % count; }

  void Change(std::string& input, const std::string& other) {
    const size_t at = Below(input.size() + 1);
    const size_t length = Below(std::min<size_t>(input.size() - at, 64) + 1);
    switch (Below(6)) {
      case 0:  // flip a bit
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << Below(8)));
        break;
      case 1:  // set a byte, often to a limit of some type
        if (at < input.size())
          input[at] = static_cast<char>(Below(2) == 0 ? "\0\x7f\x80\xff\x01"[Below(5)] : Below(256));
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:  // repeat a part
        input.insert(at, input.substr(at, length));
        break;
      case 4:
        input.insert(at, 1 + Below(8), static_cast<char>(Below(256)));
        break;
      case 5:  // append the end of another input
        input = input.substr(0, at) + other.substr(Below(other.size() + 1));
        break;
    }
  }

  std::mt19937_64 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  CHECK_GE(argc, 3);
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) signal(number, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(WriteInput);
  const fs::path folder = argv[1];
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  CHECK(!paths.empty()) << folder << " is empty";
  std::sort(paths.begin(), paths.end());
  const std::map<std::string, std::vector<std::string>> expected = ReadExpected(argv[2], folder.filename());
  std::vector<std::string> corpus;
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    std::vector<std::string> reached;
    starring::ReachedWords() = &reached;
    Run(corpus.back());
    starring::ReachedWords() = nullptr;
    if (expected.empty()) continue;
    const std::string name = path.filename();
    CHECK(expected.contains(name)) << argv[2] << " does not say what " << path << " must reach";
    CheckReached(name, expected.at(name), reached);
  }
  for (const auto& [name, words] : expected) CHECK(fs::exists(folder / name)) << folder / name << " does not exist";
  Run("");
  Mutator mutator;
  const Clock::time_point end = Clock::now() + std::chrono::seconds(argc > 3 ? std::atoi(argv[3]) : 1);
  int64_t count = 0;
  for (; Clock::now() < end; ++count) Run(mutator.Mutate(corpus));
  std::printf("replay: %zu files, %lld mutations\n", corpus.size(), static_cast<long long>(count));
  return 0;
}
