/// Work in a process of its own, which says what it finds in lines of JSON: what it breaks is gone with it, a device's context too.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "peer.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/function_ref.hpp"
#include "tiered/core/text.hpp"

namespace bench {

/// Writes lines to the process that waits for them.
class Lines {
 public:
  explicit Lines(int descriptor) : descriptor_(descriptor) {}
  void operator()(nlohmann::json const& j) const {
    // An error text may hold bytes of a file's name.
    std::string const line = j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
    for (std::size_t done = 0; done < line.size();) {
      ::ssize_t const n = ::write(descriptor_, line.data() + done, line.size() - done);
      if (n < 0 && errno != EINTR) throw tiered::Error(tiered::Errc::io, std::strerror(errno));
      if (n > 0) done += std::size_t(n);
    }
  }
  void progress(std::string const& text) const { (*this)({{"kind", "progress"}, {"text", text}}); }

 private:
  int descriptor_;
};

namespace detail {

inline void hand_out_lines(std::string& text, tiered::FunctionRef<void(nlohmann::json const&)> on_line) {
  for (std::size_t end = 0; (end = text.find('\n')) != text.npos; text.erase(0, end + 1))
    on_line(nlohmann::json::parse(text.substr(0, end)));
}

[[noreturn]] inline void work_and_exit(Lines const& lines, tiered::FunctionRef<void(Lines const&)> work) {
  int code = 0;
  try {
    work(lines);
  } catch (std::exception const& e) {
    code = 1;
    try {
      lines({{"kind", "failed"}, {"error", e.what()}});
    } catch (...) {
    }
  }
  std::fflush(nullptr);
  ::_exit(code);
}

/// The end of a pipe and the child that writes to the other: both go whatever happens.
class Child {
 public:
  Child(pid_t id, int descriptor) : id_(id), descriptor_(descriptor) {}
  Child(Child const&) = delete;
  Child& operator=(Child const&) = delete;
  ~Child() {
    if (id_ > 0) static_cast<void>(::kill(id_, SIGKILL)), wait();
  }
  int descriptor() const { return descriptor_; }
  /// Its status, once it has ended.
  int wait() {
    ::close(descriptor_);
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    return status;
  }

 private:
  pid_t id_;
  int descriptor_;
};

}  // namespace detail

/// Calls work(lines) in a child, and on_line here for each of its lines as it comes. The process that calls this must have no other
/// threads, and must not have used a device: children cannot go on with that.
/// Returns why the child failed: what it threw, or how it ended; empty where it did not.
inline std::string in_child(tiered::FunctionRef<void(Lines const&)> work, tiered::FunctionRef<void(nlohmann::json const&)> on_line) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw tiered::Error(tiered::Errc::io, std::strerror(errno));
  std::fflush(nullptr);
  pid_t const child = ::fork();
  if (child < 0) {
    int const fork_errno = errno;
    ::close(ends[0]), ::close(ends[1]);
    throw tiered::Error(tiered::Errc::io, tiered::concat("no process: ", std::strerror(fork_errno)));
  }
  if (child == 0) {
    ::close(ends[0]);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would read its lines
    detail::work_and_exit(Lines(ends[1]), work);
  }
  ::close(ends[1]);
  detail::Child process(child, ends[0]);
  std::string text, error;
  auto const take = [&](nlohmann::json const& j) {
    if (j.at("kind") == "failed")
      error = j.at("error");
    else
      on_line(j);
  };
  char piece[4096];
  for (::ssize_t n = 0; (n = ::read(process.descriptor(), piece, sizeof piece)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    text.append(piece, std::size_t(n));
    detail::hand_out_lines(text, take);
  }
  int const status = process.wait();
  return status == 0 || !error.empty() ? error : tiered::concat("its process: ", how_it_ended(status));
}

}  // namespace bench
