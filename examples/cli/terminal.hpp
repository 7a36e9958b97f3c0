/// The terminal's side of a program: interrupts, progress on stderr, text on stdout.
#pragma once

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "options.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/engine.hpp"

namespace app {

/// A standard stream that is closed would be the next file to be opened, such as the model. Whoever uses one still gets EBADF: it is
/// opened for the other direction.
inline void occupy_standard_streams() {
  for (int const descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0) continue;
    if (::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) != descriptor) _exit(failed);
  }
}

/// After a failed read or write: whether to try again. Waits where the descriptor does not, as where a terminal is shared with a program
/// that made it so. Leaves errno as it was.
inline bool retry(int descriptor, short event) {
  int const reason = errno;
  if (reason == EINTR) return true;
  if (reason != EAGAIN && reason != EWOULDBLOCK) return false;
  pollfd wanted{descriptor, event, 0};
  ::poll(&wanted, 1, -1);
  errno = reason;
  return true;
}

/// Weights are mapped, so a model file that someone cuts while it is used shows as SIGBUS in whichever thread reads it.
class CutFile {
 public:
  static void watch(std::string const& file) {
    message_ = tiered::concat("tiered-run: error: the model file was cut or cannot be read any more: ", file, '\n');
    struct sigaction action {};
    action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
      if (info->si_code != BUS_ADRERR) {  // not of a file
        std::signal(signal, SIG_DFL);
        std::raise(signal);
        return;
      }
      while (said_.test_and_set()) ::pause();  // another thread is at it
      static_cast<void>(!::write(STDERR_FILENO, message_.data(), message_.size()));
      _exit(file_error);
    };
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
  }

 private:
  static inline std::string message_;  ///< made before: a handler must not allocate
  static inline std::atomic_flag said_;
};

/// A file that grows beyond the limit of `ulimit -f` is an error of the write, as a full disk is, and no end without a word.
inline void report_large_files() { std::signal(SIGXFSZ, SIG_IGN); }

/// Ctrl-C, SIGTERM and SIGHUP: the first sets a flag and cancels the watched engine, the second ends the program as if nobody listened.
class Interrupt {
 public:
  /// Not before the prompt has been read: a read that waits for a person is best ended by the system.
  static void install() { install(SA_RESETHAND); }
  /// For a conversation, where what Ctrl-C stopped goes on after take(). A second one before that still ends the program.
  static void install_for_conversation() {
    if (wake_[0] < 0 && ::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0)
      throw tiered::Error(tiered::Errc::io, tiered::concat("no pipe: ", std::strerror(errno)));
    install(0);
  }
  static bool requested() { return caught_ != 0; }
  /// The same, for what polls. It stays as long as the program.
  static std::atomic<bool> const& flag() { return stop_; }
  static bool terminated() { return caught_ == SIGTERM || caught_ == SIGHUP; }
  /// As a shell reports it.
  static int exit_code() { return 128 + caught_; }
  /// Whether there was a Ctrl-C, which counts as dealt with from now on.
  static bool take() {
    char byte = 0;
    while (::read(wake_[0], &byte, 1) > 0) {
    }
    if (caught_ != SIGINT) return false;
    if (tiered::CancelToken* const token = watched_.load()) token->reset();
    stop_ = false;
    caught_ = 0;
    return true;
  }

  /// Waits for input, or for any signal.  Returns  whether a read would not wait; signals that were caught before count, too.
  static bool wait_for_input(int descriptor) {
    if (requested()) return false;
    pollfd wanted[] = {{descriptor, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    if (::poll(wanted, 2, -1) < 0) return errno != EINTR;  // else the read says what is wrong
    return wanted[0].revents != 0 && !requested();
  }

  /// While it lives, a signal cancels the engine's step.
  class Watch {
   public:
    explicit Watch(tiered::CancelToken& token) {
      watched_ = &token;
      if (requested()) token.cancel();
    }
    ~Watch() { watched_ = nullptr; }
    Watch(Watch const&) = delete;
    Watch& operator=(Watch const&) = delete;
  };

 private:
  static void install(int flags) {
    struct sigaction action {};
    action.sa_handler = [](int signal) {
      int const reason = errno;
      if (caught_ == signal) {  // and nobody took it: whatever it waits for, it waits no more
        std::signal(signal, SIG_DFL);
        std::raise(signal);
      }
      caught_ = signal;
      stop_ = true;
      if (tiered::CancelToken* const token = watched_.load()) token->cancel();
      if (wake_[1] >= 0) static_cast<void>(!::write(wake_[1], "", 1));
      errno = reason;
    };
    action.sa_flags = flags;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    struct sigaction hangup {};
    if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup
  }

  static_assert(std::atomic<tiered::CancelToken*>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);
  static inline volatile std::sig_atomic_t caught_ = 0;
  static inline std::atomic<tiered::CancelToken*> watched_ = nullptr;
  static inline std::atomic<bool> stop_ = false;
  static inline int wake_[2] = {-1, -1};  ///< a byte for each signal, for who waits in poll()
};

/// "reading the prompt: 512 of 4096 tokens" on one line that is taken away in the end; nothing where stderr is no terminal.
class Progress {
 public:
  explicit Progress(std::string what, std::string unit = "")
      : what_(std::move(what)), unit_(std::move(unit)), shown_(isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;

  void show(std::uint64_t done, std::uint64_t total) {
    if (!shown_ || total == 0) return;
    std::string const text = unit_.empty() ? tiered::concat(done * 100 / total, " %") : tiered::concat(done, " of ", total, ' ', unit_);
    if (text == last_) return;
    last_ = text;
    std::fprintf(stderr, "\r\033[K%s: %s", what_.c_str(), text.c_str());
  }
  void clear() {
    if (!last_.empty()) std::fputs("\r\033[K", stderr);
    last_.clear();
  }

 private:
  std::string what_, unit_, last_;
  bool shown_;
};

/// Tells stdout's failures, which exit with `failed`, from those of files that are read.
struct OutputError : tiered::Error {
  using Error::Error;
};

/// Text to stdout at once, all of it.
/// Errors  OutputError (Errc::io) with the system's reason, as for a full disk. (A reader that has gone ends the program by SIGPIPE.)
class TextOutput {
 public:
  void write(std::string_view text) {
    if (!text.empty()) ends_line_ = text.back() == '\n';
    while (!text.empty()) {
      ssize_t const n = ::write(STDOUT_FILENO, text.data(), text.size());
      if (n < 0 && retry(STDOUT_FILENO, POLLOUT)) continue;
      if (n < 0) throw OutputError(tiered::Errc::io, tiered::concat("cannot write to standard output: ", std::strerror(errno)));
      text.remove_prefix(std::size_t(n));
    }
  }
  void end_line() {
    if (!ends_line_) write("\n");
  }

 private:
  bool ends_line_ = true;
};

}  // namespace app
