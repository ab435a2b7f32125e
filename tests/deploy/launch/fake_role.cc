// A fake worker and server for launch_test.py. It behaves as its flags say and writes notes to a folder.
//
//   --notes=FOLDER     writes NAME.start (pid, cores, chosen variables, flags) and NAME.saved; NAME is w0, s1, ...
//   --wait             runs until a signal; without it the worker ends at once
//   --exit=NAME:CODE   exits with CODE, or by signal -CODE, once all processes in --everybody have started
//   --after=NAME       --exit waits until NAME, whose start it has seen, has ended
//   --resumed_exit     0: --exit holds only for a run without --resume
//   --stubborn=NAME    ignores SIGTERM, SIGINT and SIGUSR1
//   --save_ms=N        time between a polite signal and exit code 0
//   --state_dir=FOLDER a server writes a log of generations there, of the run FAKE_SERVER_LOG, if that is set; if
//                      FAKE_SERVER_ENDS is set, of one that has ended
//   --print=TEXT       printed to standard output, with "\n" and "\r" as escapes; --error=TEXT: to standard error
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "server/elastic/generation_log.h"

namespace {

std::map<std::string, std::string> flags;

std::string Variable(const char* name) {
  const char* const value = getenv(name);
  return value == nullptr ? "" : value;
}

// The test polls for the file, and must not read half of it.
void WriteWhole(const std::string& path, const std::string& text) {
  std::ofstream(path + ".part") << text;
  rename((path + ".part").c_str(), path.c_str());
}

bool Exists(const std::string& path) {
  struct stat ignored;
  return stat(path.c_str(), &ignored) == 0;
}

std::string Unescaped(std::string text) {
  const std::pair<const char*, const char*> escapes[] = {{"\\n", "\n"}, {"\\r", "\r"}};
  for (const auto& [from, to] : escapes) {
    for (size_t at; (at = text.find(from)) != std::string::npos;) text.replace(at, 2, to);
  }
  return text;
}

std::string Cores() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof(set), &set);
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) text += (text.empty() ? "" : ",") + std::to_string(core);
  }
  return text;
}

void Note(const std::string& name, const std::string& what, int argc, char** argv) {
  std::ostringstream text;
  text << "pid " << getpid() << "\nparent " << getppid() << "\ngroup " << getpgid(0) << "\ncores " << Cores() << "\n";
  for (const char* variable : {"OMP_WAIT_POLICY", "OMP_NUM_THREADS", "STARRING_CORES_PER_WORKER",
                               "STARRING_CORES_PER_SERVER", "SLURM_PROCID", "OMPI_COMM_WORLD_SIZE"}) {
    text << variable << " " << Variable(variable) << "\n";
  }
  for (int i = 1; i < argc; ++i) text << argv[i] << "\n";
  if (flags.count("notes") != 0) WriteWhole(flags["notes"] + "/" + name + "." + what, text.str());
}

// "--exit=w1:3" for w1: 3. Returns whether the flag is about `name`.
bool FlagFor(const std::string& flag, const std::string& name, int* value) {
  const std::string& text = flags[flag];
  if (text.rfind(name + ":", 0) != 0) return false;
  *value = atoi(text.c_str() + name.size() + 1);
  return true;
}

void AwaitEverybody() {
  std::istringstream names(flags["everybody"]);
  for (std::string name; std::getline(names, name, ',');) {
    while (!Exists(flags["notes"] + "/" + name + ".start")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Waits until the launcher has noticed the process's end.
void AwaitEndOf(const std::string& name) {
  std::ifstream file(flags["notes"] + "/" + name + ".start");
  std::string word;
  pid_t pid = 0;
  if (!(file >> word >> pid)) return;
  while (kill(pid, 0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    flags[word.substr(2, equals == std::string::npos ? equals : equals - 2)] =
        equals == std::string::npos ? "true" : word.substr(equals + 1);
  }
  const bool server = flags.count("shard") != 0;
  if (server) {  // a server gets none of the test's flags
    const std::string notes = Variable("FAKE_NOTES");
    if (!notes.empty()) flags["notes"] = notes;
    if (!Variable("FAKE_SERVER_EXIT").empty()) flags["exit"] = Variable("FAKE_SERVER_EXIT");
    flags["everybody"] = Variable("FAKE_EVERYBODY");
    flags["after"] = Variable("FAKE_SERVER_AFTER");
  }
  std::string rank = flags.count("rank") != 0 ? flags["rank"] : Variable("OMPI_COMM_WORLD_RANK");
  if (rank.empty()) rank = "0";
  const std::string name = server ? "s" + flags["shard"] : "w" + rank;

  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, nullptr);

  Note(name, "start", argc, argv);
  printf("%s", Unescaped(flags["print"]).c_str());
  fflush(stdout);
  fprintf(stderr, "%s", Unescaped(flags["error"]).c_str());
  if (server && Variable("FAKE_SERVER_SILENT").empty()) {
    WriteWhole(flags["port_file"], "127.0.0.1:" + std::to_string(7000 + atoi(flags["shard"].c_str())) + "\n");
  }
  if (server && !Variable("FAKE_SERVER_LOG").empty()) {
    const auto log = starring::GenerationLog::Open(flags["state_dir"],
                                                   {.name = Variable("FAKE_SERVER_LOG"), .leaves = 1, .shards = 1});
    if (!log.ok() || (!Variable("FAKE_SERVER_ENDS").empty() && !(*log)->End(0).ok())) return 9;
  }
  int code = 0;
  if (FlagFor("exit", name, &code) && !(flags.count("resumed_exit") != 0 && flags["resume"] == "true")) {
    AwaitEverybody();
    if (!flags["after"].empty()) AwaitEndOf(flags["after"]);
    if (code < 0) raise(-code);
    return code;
  }
  if (!server && flags.count("wait") == 0) return 0;
  if (flags["stubborn"] == name) {
    for (;;) pause();
  }
  int number = 0;
  sigwait(&signals, &number);
  std::this_thread::sleep_for(std::chrono::milliseconds(atoi(flags["save_ms"].c_str())));
  Note(name, "saved", argc, argv);
  printf("%s saved after signal %d\n", name.c_str(), number);
  return 0;
}
