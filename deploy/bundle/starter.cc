// The file under which a bundle's program is started: chooses the C library, then becomes the program.
//
//   TOP/bin/worker                    this starter, under the name of each program; bin may be another folder
//   TOP/libexec/bin/worker            the program
//   TOP/libexec/loader/bin/worker     the bundle's loader, under the name of each program
//   TOP/lib/glibc                     the bundle's C library
//
// The choice is the first argument, --libc=auto|own|machine, which the program does not see, or the variable
// STARRING_LIBC. The argument sets the variable, so that the processes that a program starts get the same library.
// `auto` takes the machine's library if it is newer, because libraries of such a machine may need it: drivers, fabrics.
// With equal versions the bundle's own is taken, so that different distributions compute the same bits.
//
// A process under the bundle's loader has the loader as /proc/PID/exe and as the name in ps. Each program has a loader
// of its own name, so both still tell programs apart (common/host/own_program.h).
//
// The starter must run on every machine. So it is static, and free of any C library: it makes its system calls itself.
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

// Loops, copies and string_view may become calls of these. The assembly keeps their own loops from becoming calls of
// themselves.
extern "C" {
void* memcpy(void* to, const void* from, size_t size) {
  void* next = to;
  asm volatile("rep movsb" : "+D"(next), "+S"(from), "+c"(size) : : "memory");
  return to;
}
void* memset(void* to, int value, size_t size) {
  void* next = to;
  asm volatile("rep stosb" : "+D"(next), "+c"(size) : "a"(value) : "memory");
  return to;
}
int memcmp(const void* one, const void* other, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const int difference = static_cast<const unsigned char*>(one)[i] - static_cast<const unsigned char*>(other)[i];
    if (difference != 0) return difference;
  }
  return 0;
}
void* memchr(const void* text, int wanted, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const char* const one = static_cast<const char*>(text) + i;
    if (*one == static_cast<char>(wanted)) return const_cast<char*>(one);
  }
  return nullptr;
}
size_t strlen(const char* text) {
  size_t size = 0;
  while (text[size] != '\0') {
    ++size;
    asm volatile("");
  }
  return size;
}
}

namespace {

using std::string_view;

constexpr const char kMachineLoader[] = "/lib64/ld-linux-x86-64.so.2";  // as every program of x86-64 names it
constexpr string_view kLibc = "/libc.so.6";
constexpr string_view kFlag = "--libc=";
constexpr string_view kVariable = "STARRING_LIBC=";
constexpr string_view kSearchVariable = "LD_LIBRARY_PATH=";
constexpr int kUsageError = 2;
constexpr int kNone = -1;  // no version: there is no such library

// A system call. The kernel's answer is a negative errno, or the result.
long Call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result = 0;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

template <typename T>
long Address(T* pointer) {
  return reinterpret_cast<long>(pointer);
}

void Write(int file, string_view text) { Call(SYS_write, file, Address(text.data()), static_cast<long>(text.size())); }

// The text without its first `size` bytes, which it must have: substr would need the C++ library's exceptions.
string_view From(string_view text, size_t size) {
  text.remove_prefix(size);
  return text;
}

// The last part of a path.
string_view NameOf(string_view path) { return From(path, path.rfind('/') + 1); }

// The path without its last part; empty for a path without a slash.
string_view FolderOf(string_view path) {
  const size_t slash = path.rfind('/');
  return slash == string_view::npos ? string_view() : string_view(path.data(), slash);
}

// Ends the process with a sentence of these parts.
template <typename... Parts>
[[noreturn]] void Fail(int code, string_view program, Parts... parts) {
  Write(STDERR_FILENO, NameOf(program));
  Write(STDERR_FILENO, ": ");
  (Write(STDERR_FILENO, parts), ...);
  Write(STDERR_FILENO, "\n");
  for (;;) Call(SYS_exit_group, code);
}

// A text in place, which ends with a zero byte.
template <size_t kRoom>
class Text {
 public:
  // Without the parts that have no room: a path that is too long then names no file.
  template <typename... Parts>
  explicit Text(Parts... parts) {
    (Add(parts), ...);
  }

  void Add(string_view part) {
    if (part.size() >= kRoom - size_) return;
    memcpy(bytes_ + size_, part.data(), part.size());
    size_ += part.size();
    bytes_[size_] = '\0';
  }

  const char* c_str() const { return bytes_; }
  string_view view() const { return {bytes_, size_}; }

 private:
  char bytes_[kRoom] = {};
  size_t size_ = 0;
};

using Path = Text<PATH_MAX>;
using Number = Text<24>;

Number Digits(long value) {
  char digits[24];
  size_t begin = sizeof(digits);
  do {
    digits[--begin] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0 && begin > 0);
  return Number(string_view(digits + begin, sizeof(digits) - begin));
}

// The target of a symbolic link. Empty if `path` is no link.
Path LinkAt(const char* path) {
  char target[PATH_MAX];
  const long size = Call(SYS_readlink, Address(path), Address(target), sizeof(target) - 1);
  return Path(string_view(target, size > 0 ? static_cast<size_t>(size) : 0));
}

// The value of a variable; empty if it is not set. `name` ends with an equals sign.
string_view ValueOf(char** environment, string_view name) {
  for (; *environment != nullptr; ++environment) {
    const string_view variable = *environment;
    if (variable.starts_with(name)) return From(variable, name.size());
  }
  return {};
}

// A file of the machine that is mapped to be read. It may be cut or of another kind, so each access is checked.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const long file = Call(SYS_open, Address(path), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const long size = Call(SYS_lseek, file, 0, SEEK_END);
    const long begin = size > 0 ? Call(SYS_mmap, 0, size, PROT_READ, MAP_PRIVATE, file, 0) : -EINVAL;
    Call(SYS_close, file);
    if (begin > 0) bytes_ = {reinterpret_cast<const char*>(begin), static_cast<size_t>(size)};
  }

  bool is_open() const { return !bytes_.empty(); }

  // Null if the file ends before.
  template <typename T>
  const T* At(uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return nullptr;
    return reinterpret_cast<const T*>(bytes_.data() + offset);
  }

  // Up to a zero byte.
  string_view TextAt(uint64_t offset) const {
    if (offset >= bytes_.size()) return {};
    const string_view rest = From(bytes_, offset);
    const size_t end = rest.find('\0');
    return end == string_view::npos ? string_view() : string_view(rest.data(), end);
  }

 private:
  string_view bytes_;
};

// The parts of a library's dynamic section that lead to its versions, as offsets in the file.
struct Versions {
  uint64_t definitions = 0;
  uint64_t count = 0;
  uint64_t strings = 0;
};

Versions VersionsOf(const MappedFile& file, const Elf64_Ehdr& head) {
  const auto segment = [&](int i) { return file.At<Elf64_Phdr>(head.e_phoff + i * sizeof(Elf64_Phdr)); };
  const auto offset_of = [&](uint64_t address) {
    for (int i = 0; i < head.e_phnum && segment(i) != nullptr; ++i) {
      const Elf64_Phdr& one = *segment(i);
      if (one.p_type == PT_LOAD && address >= one.p_vaddr && address - one.p_vaddr < one.p_filesz) {
        return address - one.p_vaddr + one.p_offset;
      }
    }
    return uint64_t{0};
  };
  Versions found;
  for (int i = 0; i < head.e_phnum && segment(i) != nullptr; ++i) {
    if (segment(i)->p_type != PT_DYNAMIC) continue;
    for (uint64_t at = segment(i)->p_offset; const auto* const entry = file.At<Elf64_Dyn>(at); at += sizeof(*entry)) {
      if (entry->d_tag == DT_NULL) break;
      if (entry->d_tag == DT_VERDEF) found.definitions = offset_of(entry->d_un.d_ptr);
      if (entry->d_tag == DT_VERDEFNUM) found.count = entry->d_un.d_val;
      if (entry->d_tag == DT_STRTAB) found.strings = offset_of(entry->d_un.d_ptr);
    }
  }
  return found;
}

// 36 for "GLIBC_2.36"; kNone for other names of versions.
int MinorOf(string_view version) {
  constexpr string_view kPrefix = "GLIBC_2.";
  if (!version.starts_with(kPrefix) || version.size() > kPrefix.size() + 4) return kNone;
  int minor = 0;
  for (const char digit : From(version, kPrefix.size())) {
    // "GLIBC_2.2.5" is older than every one that matters here.
    if (digit < '0' || digit > '9') return kNone;
    minor = minor * 10 + (digit - '0');
  }
  return minor;
}

// The newest version of symbols that the C library at `path` has: 36 for GLIBC_2.36. Other libraries say in the same
// versions which C library they need. kNone if the file is no C library for x86-64.
int NewestMinor(const char* path) {
  const MappedFile file(path);
  const auto* const head = file.At<Elf64_Ehdr>(0);
  if (head == nullptr || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64 ||
      head->e_machine != EM_X86_64) {
    return kNone;
  }
  const Versions versions = VersionsOf(file, *head);
  int newest = kNone;
  uint64_t at = versions.definitions;
  for (uint64_t i = 0; i < versions.count; ++i) {
    const auto* const definition = file.At<Elf64_Verdef>(at);
    if (definition == nullptr) break;
    if (const auto* const name = file.At<Elf64_Verdaux>(at + definition->vd_aux)) {
      const int minor = MinorOf(file.TextAt(versions.strings + name->vda_name));
      if (minor > newest) newest = minor;
    }
    at += definition->vd_next;
  }
  return newest;
}

// That of the library which the machine's loader takes; kNone if the machine has no loader for programs of glibc.
int MachineMinor() {
  const long loader = Call(SYS_open, Address(kMachineLoader), O_RDONLY | O_CLOEXEC);
  if (loader < 0) return kNone;
  // The library is next to the loader, except where a link leads to a loader that is kept elsewhere.
  const Path real = LinkAt(Path("/proc/self/fd/", Digits(loader).view()).c_str());
  Call(SYS_close, loader);
  const string_view folders[] = {FolderOf(real.view()), "/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu",
                                 "/usr/lib/x86_64-linux-gnu"};
  for (const string_view folder : folders) {
    const int minor = NewestMinor(Path(folder, kLibc).c_str());
    if (minor != kNone) return minor;
  }
  return kNone;
}

struct Start {
  int argc = 0;  // 1 or more in Run
  char** argv = nullptr;
  char** environment = nullptr;
  const char* executed = nullptr;  // the path that was given to exec
};

enum class Libc { kOwn, kMachine };

// The choice of the user, checked. `said_by` is the flag or the variable.
Libc Choose(string_view program, string_view top, string_view said_by, string_view value) {
  if (value == "own") return Libc::kOwn;
  if (value != "auto" && value != "machine") {
    Fail(kUsageError, program, said_by, value, ": must be auto, own or machine");
  }
  const int own = NewestMinor(Path(top, "/lib/glibc", kLibc).c_str());
  const int machine = MachineMinor();
  if (value == "auto") return machine > own ? Libc::kMachine : Libc::kOwn;
  if (machine == kNone) Fail(1, program, said_by, value, ": this machine has no glibc: give --libc=own");
  if (machine < own) {
    Fail(1, program, said_by, value, ": this machine's glibc has the symbols of 2.", Digits(machine).view(),
         " and older, the program needs those of 2.", Digits(own).view(), ": give --libc=own");
  }
  return Libc::kMachine;
}

// The environment with the choice in it.
char** WithVariable(char** environment, char* variable, char** room) {
  char** next = room;
  for (; *environment != nullptr; ++environment) {
    if (!string_view(*environment).starts_with(kVariable)) *next++ = *environment;
  }
  *next++ = variable;
  *next = nullptr;
  return room;
}

[[noreturn]] void Execute(string_view program, const char* path, char** argv, char** environment) {
  const long error = Call(SYS_execve, Address(path), Address(argv), Address(environment));
  Fail(1, program, "cannot start ", path, ": error ", Digits(-error).view(),
       error == -ENOENT ? ": there is no such file: unpack the whole bundle again"
                        : ": see errno(3), and whether its folder allows programs (mount, noexec)");
}

// Becomes the program under the bundle's loader.
[[noreturn]] void ExecuteUnderLoader(const Start& start, string_view program, string_view top, string_view place) {
  if (top.find_first_of(":;$") != string_view::npos) {
    Fail(1, program, top, ": the loader cannot take the bundle's C library from a path with : or ; or $: unpack the ",
         "bundle elsewhere, or give --libc=machine");
  }
  // The bundle's C library comes before the user's folders, which may have another one. They still count for the
  // libraries of drivers.
  static Text<PATH_MAX + 128 * 1024> folders;  // Linux lets a variable have 128 KiB
  folders.Add(top);
  folders.Add("/lib/glibc");
  if (const string_view more = ValueOf(start.environment, kSearchVariable); !more.empty()) {
    folders.Add(":");
    folders.Add(more);
  }
  static Path path(top, "/libexec", place);
  static char argv0_flag[] = "--argv0";
  static char folders_flag[] = "--library-path";
  constexpr int kMoreWords = 5;
  auto** const argv =
      static_cast<char**>(__builtin_alloca(static_cast<size_t>(start.argc + kMoreWords + 1) * sizeof(char*)));
  char** next = argv;
  for (char* const word : {start.argv[0], argv0_flag, start.argv[0], folders_flag, const_cast<char*>(folders.c_str()),
                           const_cast<char*>(path.c_str())}) {
    *next++ = word;
  }
  for (int i = 1; i <= start.argc; ++i) *next++ = start.argv[i];
  Execute(program, Path(top, "/libexec/loader", place).c_str(), argv, start.environment);
}

// The path of this file. Without /proc it is the path that was given to exec, with its links as they are.
Path OwnPath(const Start& start) {
  Path own = LinkAt("/proc/self/exe");
  if (!own.view().empty() || start.executed == nullptr || start.executed[0] == '/') {
    return own.view().empty() && start.executed != nullptr ? Path(start.executed) : own;
  }
  char here[PATH_MAX] = "";
  Call(SYS_getcwd, Address(here), sizeof(here));
  return Path(here, "/", start.executed);
}

[[noreturn]] void Run(Start start) {
  static const Path own = OwnPath(start);
  const string_view program = own.view();
  const string_view top = FolderOf(FolderOf(program));
  if (top.empty()) Fail(1, program, "is no program of a bundle: start it from where the bundle was unpacked");
  const string_view place = From(program, top.size());  // "/bin/worker"
  string_view said_by = kVariable;
  string_view value = ValueOf(start.environment, kVariable);
  const string_view first = start.argc > 1 ? start.argv[1] : "";
  if (first.starts_with(kFlag)) {
    said_by = kFlag;
    value = From(first, kFlag.size());
    static Text<64> variable(kVariable, value);
    size_t count = 0;
    while (start.environment[count] != nullptr) ++count;
    start.environment = WithVariable(start.environment, const_cast<char*>(variable.c_str()),
                                     static_cast<char**>(__builtin_alloca((count + 2) * sizeof(char*))));
    // The program's name takes the flag's place.
    start.argv[1] = start.argv[0];
    ++start.argv;
    --start.argc;
  } else if (value.empty()) {
    value = "auto";
  }
  if (place.starts_with("/bin/") && start.argc > 1 && string_view(start.argv[1]) == "--help") {
    Write(STDOUT_FILENO,
          "--libc=auto|own|machine, before all other flags: the C library; auto: the machine's if it is newer\n");
  }
  const Libc libc = Choose(program, top, said_by, value);
  if (libc == Libc::kOwn) ExecuteUnderLoader(start, program, top, place);
  Execute(program, Path(top, "/libexec", place).c_str(), start.argv, start.environment);
}

}  // namespace

// The kernel starts a process here. The stack has the number of arguments, the arguments, the environment and the
// auxiliary vector.
asm(R"(
.globl _start
_start:
  xor %ebp, %ebp
  mov %rsp, %rdi
  and $-16, %rsp
  call StartWithStack
)");

extern "C" [[noreturn]] __attribute__((used)) void StartWithStack(long* stack) {
  static char nameless[] = "program";
  static char* no_arguments[] = {nameless, nullptr};
  Start start = {.argc = static_cast<int>(stack[0]), .argv = reinterpret_cast<char**>(stack + 1)};
  start.environment = start.argv + start.argc + 1;
  char** end = start.environment;
  while (*end != nullptr) ++end;
  for (auto* entry = reinterpret_cast<const Elf64_auxv_t*>(end + 1); entry->a_type != AT_NULL; ++entry) {
    if (entry->a_type == AT_EXECFN) start.executed = reinterpret_cast<const char*>(entry->a_un.a_val);
  }
  // Old kernels start a program without even its name.
  if (start.argc == 0) {
    start.argc = 1;
    start.argv = no_arguments;
  }
  Run(start);
}
