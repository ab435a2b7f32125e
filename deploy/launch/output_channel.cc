#include "deploy/launch/output_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace starring {
namespace {

absl::Status SystemError(absl::string_view call) {
  return absl::InternalError(absl::StrCat(call, ": ", strerror(errno)));
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<OutputChannel> CreatePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe2");
  OutputChannel channel{.read_end = UniqueFd(ends[0]), .write_end = UniqueFd(ends[1]), .write_path = ""};
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return SystemError("fcntl");  // our end only: the child may block
  return channel;
}

absl::StatusOr<OutputChannel> CreateFifo(const std::string& path) {
  if (mkfifo(path.c_str(), 0600) != 0) return SystemError(absl::StrCat("mkfifo ", path));
  // Open for reading and writing: with no writer yet there would be an end of file to see.
  OutputChannel channel{.read_end = UniqueFd(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC)),
                        .write_end = UniqueFd(),
                        .write_path = path};
  if (channel.read_end.get() < 0) return SystemError(absl::StrCat("open ", path));
  return channel;
}

absl::StatusOr<OutputChannel> CreateTerminal() {
  OutputChannel channel{
      .read_end = UniqueFd(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)), .write_end = UniqueFd(), .write_path = ""};
  const int master = channel.read_end.get();
  char path[64];
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0 || ptsname_r(master, path, sizeof(path)) != 0) {
    return SystemError("posix_openpt");
  }
  channel.write_end = UniqueFd(open(path, O_RDWR | O_NOCTTY | O_CLOEXEC));
  channel.write_path = path;
  struct termios settings;
  if (channel.write_end.get() < 0 || tcgetattr(channel.write_end.get(), &settings) != 0) return SystemError(path);
  cfmakeraw(&settings);  // our own terminal turns "\n" into "\r\n" already
  if (tcsetattr(channel.write_end.get(), TCSANOW, &settings) != 0) return SystemError(path);
  if (fcntl(master, F_SETFL, O_NONBLOCK) != 0) return SystemError("fcntl");
  CopyWindowSize(master);
  return channel;
}

void CopyWindowSize(int fd) {
  struct winsize size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) ioctl(fd, TIOCSWINSZ, &size);
}

}  // namespace starring
