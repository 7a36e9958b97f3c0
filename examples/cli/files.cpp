#include "files.hpp"

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chat.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"

namespace app {
namespace {

using tiered::concat;

[[noreturn]] void refuse(std::string const& file, std::string_view why) { throw tiered::Error(tiered::Errc::io, concat(file, ": ", why)); }
/// With what the file is for in front of its name.
std::string describe(std::string const& file, OutputKind kind) {
  if (kind == OutputKind::session) return concat("session file ", file);
  return concat(kind == OutputKind::messages ? "messages file " : "trace file ", file);
}
[[noreturn]] void refuse_by_system(std::string const& file) { refuse(file, concat("cannot be written: ", std::strerror(errno))); }

char const* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

/// The first bytes of a regular file, as many as there are.
std::string beginning_of(std::string const& file) {
  int const descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) refuse(file, concat("is there already and cannot be looked at: ", std::strerror(errno)));
  char bytes[64];
  ssize_t const n = ::read(descriptor, bytes, sizeof bytes);
  int const reason = errno;
  ::close(descriptor);
  if (n < 0) refuse(file, concat("is there already and cannot be looked at: ", std::strerror(reason)));
  return std::string(bytes, std::size_t(n));
}

/// Whether a file that begins so was written by this program as one of the kind: see SessionHeader, save_messages() and write_trace_json().
bool is_ours(std::string_view begin, OutputKind kind) {
  if (begin.empty()) return true;
  if (kind == OutputKind::session) return begin.starts_with("tieredKV");
  if (!begin.starts_with('{') || kind == OutputKind::trace) return begin.starts_with('{');
  std::size_t const key = begin.find_first_not_of(" \t\r\n", 1);
  return key != begin.npos && begin.substr(key).starts_with("\"messages\"");
}

char const* name_of(OutputKind kind) {
  if (kind == OutputKind::session) return "session";
  return kind == OutputKind::messages ? "list of messages" : "trace";
}

/// A file beside which nothing can be made cannot be replaced either. The name is the one that a new file has before it is complete.
void check_can_be_made(std::string const& file, OutputKind kind) {
  std::string path = file + ".XXXXXX";
  int const descriptor = ::mkstemp(path.data());
  if (descriptor < 0) refuse_by_system(describe(file, kind));
  ::close(descriptor);
  ::unlink(path.c_str());
}

void check_trace(Options const& o) {
  std::string const shown = describe(o.trace_file, OutputKind::trace);
  struct stat trace {
  }, other{};
  bool const exists = ::stat(o.trace_file.c_str(), &trace) == 0;
  auto const expect_another = [&](std::string const& file, char const* what) {
    if (exists && ::stat(file.c_str(), &other) == 0 && other.st_dev == trace.st_dev && other.st_ino == trace.st_ino)
      refuse(shown, concat("is ", what, ": a trace would replace it"));
  };
  expect_another(o.model, "the model");
  for (std::optional<std::string> const& file : {o.prompt_file, o.binary_file}) {
    if (file) expect_another(*file, "the prompt file");
  }
  expect_another(o.pictures.projector, "the projector");
  for (std::string const& image : o.pictures.images) expect_another(image, "an image");
  for (std::string const& video : o.pictures.videos) expect_another(video, "a video");
  if (o.chat.system_file) expect_another(*o.chat.system_file, "the system prompt file");
  if (o.chat.template_file) expect_another(*o.chat.template_file, "the template file");
  if (!o.session.file.empty()) {
    expect_another(o.session.file, "the session");
    expect_another(messages_file(o.session.file), "the session's messages");
    if (o.trace_file == o.session.file) refuse(shown, "cannot be the session and the trace");
  }
  std::string const target = checked_output(o.trace_file, OutputKind::trace);
  if (!exists) return check_can_be_made(target, OutputKind::trace);
  if (::access(target.c_str(), W_OK) != 0) refuse_by_system(shown);
}

}  // namespace

std::string checked_output(std::string const& file, OutputKind kind) {
  std::string const shown = describe(file, kind);
  struct stat status {};
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> const resolved(::realpath(file.c_str(), nullptr));
  if (!resolved) {
    if (errno != ENOENT) refuse_by_system(shown);
    if (::lstat(file.c_str(), &status) == 0) refuse(shown, "is a link to a file that does not exist");
    return file;
  }
  std::string target = resolved.get();
  if (::stat(target.c_str(), &status) != 0) refuse_by_system(shown);
  if (!S_ISREG(status.st_mode)) refuse(shown, concat("is ", kind_of(status.st_mode), ", no file that could be written over"));
  if (!is_ours(beginning_of(target), kind))
    refuse(shown, concat("is there already and is no ", name_of(kind), ": it is not written over; choose another name or remove it"));
  return target;
}

void check_regular(std::string const& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0)
    throw tiered::Error(errno == ENOENT || errno == ENOTDIR ? tiered::Errc::not_found : tiered::Errc::io,
                        concat(file, ": ", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) refuse(file, concat("is ", kind_of(status.st_mode), ", no file"));
}

void check_outputs(Options const& o) {
  SessionOptions const& session = o.session;
  if (!session.file.empty() && session.read_only && ::access(session.file.c_str(), F_OK) == 0) check_regular(session.file);
  if (!session.file.empty() && !session.read_only) {
    check_can_be_made(checked_output(session.file, OutputKind::session), OutputKind::session);
    if (o.chat.mode == Mode::conversation && session.with_text)
      check_can_be_made(checked_output(messages_file(session.file), OutputKind::messages), OutputKind::messages);
  }
  if (!o.trace_file.empty()) check_trace(o);
}

}  // namespace app
