/// Another engine's bench program, run beside ours: what to call it with, and how to read what it prints.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"

namespace bench {

/// Tokens a second of one prompt length and of the tokens that follow it.
struct Speed {
  double prefill = 0, decode = 0;
};

struct Question {
  std::string model, kv_type = "f16";  ///< as ggml calls it, which is as tiered does
  int n_threads = 0, n_prompt = 512, n_decode = 64, n_runs = 3;
  bool on_gpu = false;  ///< all layers on the GPU, for a peer that was built with one; else it sees none, which it would use for prompts
};

enum class PeerKind { llama_bench, batched_bench, sweep_bench };

inline PeerKind peer_kind(std::string const& path) {
  std::string const name = path.substr(path.find_last_of('/') + 1);
  if (name.find("batched-bench") != name.npos) return PeerKind::batched_bench;
  if (name.find("sweep-bench") != name.npos) return PeerKind::sweep_bench;
  return PeerKind::llama_bench;
}

/// Of a status of waitpid().
inline std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return tiered::concat("killed by signal ", WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)), ')');
  int const code = WEXITSTATUS(status);
  return tiered::concat("ended with code ", code, code == 127 ? ": it cannot be run" : "");
}

/// This process's variables, but that no GPU is to be seen.
inline std::vector<std::string> environment_without_gpus() {
  constexpr std::string_view name = "CUDA_VISIBLE_DEVICES=";
  std::vector<std::string> all = {std::string(name)};
  for (char** at = ::environ; at != nullptr && *at != nullptr; ++at) {
    if (std::string_view(*at).substr(0, name.size()) != name) all.emplace_back(*at);
  }
  return all;
}

/// What a program writes to its standard output, or to its standard error; the other is thrown away.
/// Errors  Errc::io where it cannot be run or does not end with 0, with the code or signal that it ended with.
inline std::string output_of(std::vector<std::string> const& command, int descriptor = STDOUT_FILENO, bool sees_gpus = true) {
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) throw tiered::Error(tiered::Errc::io, std::strerror(errno));
  std::vector<char*> arguments;
  for (std::string const& s : command) arguments.push_back(const_cast<char*>(s.c_str()));
  arguments.push_back(nullptr);
  std::vector<std::string> const without_gpus = environment_without_gpus();  // before the fork: nothing is allocated behind it
  std::vector<char*> variables;
  for (std::string const& s : without_gpus) variables.push_back(const_cast<char*>(s.c_str()));
  variables.push_back(nullptr);
  pid_t const child = ::fork();
  int const fork_errno = errno;
  if (child == 0) {
    ::dup2(pipe_ends[1], descriptor);
    ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO + STDERR_FILENO - descriptor);
    if (::chdir("/tmp") != 0) ::_exit(126);  // some write logs where they stand
    ::execve(arguments[0], arguments.data(), sees_gpus ? ::environ : variables.data());
    ::_exit(127);
  }
  ::close(pipe_ends[1]);
  std::string text;
  char piece[4096];
  for (ssize_t n = 0; (n = ::read(pipe_ends[0], piece, sizeof piece)) > 0;) text.append(piece, std::size_t(n));
  ::close(pipe_ends[0]);
  if (child < 0) throw tiered::Error(tiered::Errc::io, tiered::concat(command.front(), ": no process: ", std::strerror(fork_errno)));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw tiered::Error(tiered::Errc::io, tiered::concat(command.front(), ": ", std::strerror(errno)));
  }
  if (status != 0) throw tiered::Error(tiered::Errc::io, tiered::concat(command.front(), ": ", how_it_ended(status)));
  return text;
}

/// Cells of the rows of a table in Markdown that begin with a number.
inline std::vector<std::vector<double>> table_rows(std::string_view text) {
  std::vector<std::vector<double>> rows;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    std::vector<double> cells;
    while (!line.empty() && line.front() == '|') {
      line.remove_prefix(1);
      std::string const cell(line.substr(0, line.find('|')));
      line.remove_prefix(std::min(line.size(), cell.size()));
      char* end = nullptr;
      double const value = std::strtod(cell.c_str(), &end);
      if (end == cell.c_str()) break;
      cells.push_back(value);
    }
    if (cells.size() >= 7) rows.push_back(cells);
  }
  return rows;
}

inline std::string absolute(std::string const& path) {
  char* const found = ::realpath(path.c_str(), nullptr);
  if (found == nullptr) throw tiered::Error(tiered::Errc::not_found, tiered::concat(path, ": ", std::strerror(errno)));
  std::string const out = found;
  std::free(found);
  return out;
}

inline Speed best(Speed a, Speed b) { return {std::max(a.prefill, b.prefill), std::max(a.decode, b.decode)}; }

/// A command as a shell would cut it: at spaces, but for those within quotes. Nothing else is special.
inline std::vector<std::string> words_of(std::string_view command) {
  std::vector<std::string> words;
  char quote = 0;
  bool in_word = false;
  for (char const c : command) {
    if (quote != 0 ? c == quote : c == '"' || c == '\'') {
      quote = quote != 0 ? 0 : c;
      if (!in_word) words.emplace_back();
      in_word = true;
    } else if (c == ' ' && quote == 0) {
      in_word = false;
    } else {
      if (!in_word) words.emplace_back();
      in_word = true;
      words.back() += c;
    }
  }
  return words;
}

/// What a peer is called with, whatever is asked: our settings, but for those that the user's words set. Some benches would run twice.
inline std::vector<std::string> peer_command(std::vector<std::string> const& words, Question const& q) {
  std::vector<std::string> command = {absolute(words.at(0)), "-m", absolute(q.model)};
  auto const add = [&](std::vector<std::string> const& names, std::string const& value) {
    bool const is_set = std::any_of(words.begin() + 1, words.end(),
                                    [&](std::string const& w) { return std::find(names.begin(), names.end(), w) != names.end(); });
    if (!is_set) command.insert(command.end(), {names.front(), value});
  };
  add({"-t", "--threads"}, std::to_string(q.n_threads));
  add({"-ctk", "--cache-type-k"}, q.kv_type);
  add({"-ctv", "--cache-type-v"}, q.kv_type);
  if (q.on_gpu) {
    add({"-ngl", "--n-gpu-layers", "--gpu-layers"}, "99");
    if (peer_kind(words.at(0)) != PeerKind::sweep_bench) {
      add({"-b", "--batch-size"}, "2048");
      add({"-ub", "--ubatch-size"}, "2048");
    }
  }
  command.insert(command.end(), words.begin() + 1, words.end());
  return command;
}

/// The best of its runs, as ours are: decode is measured behind the prompt. `peer` is a path, and maybe words behind it that are handed on,
/// as in "/opt/llama-bench --n-cpu-moe 30".
/// Errors  Errc::io where it fails or prints something else than is known of it; not_found where it, or the model, is not there.
inline Speed ask_peer(std::string const& peer, Question const& q) {
  auto const text = [](auto n) { return std::to_string(n); };
  std::vector<std::string> const words = words_of(peer);
  tiered::expects(!words.empty(), "a peer has a path");
  std::string const& path = words.front();
  std::vector<std::string> const common = peer_command(words, q);
  auto const with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return output_of(more, peer_kind(path) == PeerKind::sweep_bench ? STDERR_FILENO : STDOUT_FILENO, q.on_gpu);
  };
  Speed speed;
  try {
    switch (peer_kind(path)) {
      case PeerKind::llama_bench: {
        std::vector<std::string> const shared = {"-r", text(q.n_runs), "-fa", "1", "-o", "json"};
        auto const run = [&](std::vector<std::string> more) {
          more.insert(more.end(), shared.begin(), shared.end());
          std::vector<double> const samples = nlohmann::json::parse(with(more)).at(0).at("samples_ts");
          return *std::max_element(samples.begin(), samples.end());
        };
        speed.prefill = run({"-p", text(q.n_prompt), "-n", "0"});
        if (q.n_decode > 0) speed.decode = run({"-p", "0", "-n", text(q.n_decode), "-d", text(q.n_prompt)});
        break;
      }
      case PeerKind::batched_bench:
        for (int i = 0; i < q.n_runs; ++i) {
          std::string const out = with({"-c", text(q.n_prompt + q.n_decode + 256), "-npp", text(q.n_prompt), "-ntg", text(q.n_decode),
                                        "-npl", "1", "-fa", "on", "--output-format", "jsonl"});
          nlohmann::json const line = nlohmann::json::parse(out.substr(out.find('{')));
          speed = best(speed, {line.at("speed_pp"), line.at("speed_tg")});
        }
        break;
      case PeerKind::sweep_bench:
        for (int i = 0; i < q.n_runs; ++i) {
          std::string const out = with(
              {"-c", text(2 * q.n_prompt + q.n_decode + 256), "-n", text(q.n_decode), "-b", text(q.n_prompt), "-ub", text(q.n_prompt)});
          // PP, TG, N_KV, T_PP, S_PP, T_TG, S_TG: prompts from the first row, tokens behind it from the one whose N_KV is a prompt.
          for (std::vector<double> const& row : table_rows(out)) {
            if (int(row[2]) == 0) speed.prefill = std::max(speed.prefill, row[4]);
            if (int(row[2]) == q.n_prompt) speed.decode = std::max(speed.decode, row[6]);
          }
        }
        break;
    }
  } catch (nlohmann::json::exception const& e) {
    throw tiered::Error(tiered::Errc::io, tiered::concat(path, ": its output was not understood: ", e.what()));
  }
  if (speed.prefill <= 0) throw tiered::Error(tiered::Errc::io, tiered::concat(path, ": no speed in its output"));
  return speed;
}

}  // namespace bench
