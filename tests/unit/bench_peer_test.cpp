// Peers: their commands, and processes of our own that fail in every way.
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../bench/model/child.hpp"
#include "../bench/model/peer.hpp"
#include "../bench/model/results.hpp"
#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"

using nlohmann::json;
using Words = std::vector<std::string>;

TEST_CASE("a peer's command is cut at spaces that are not within quotes") {
  CHECK(bench::words_of("/a/b --n-cpu-moe 30") == Words{"/a/b", "--n-cpu-moe", "30"});
  CHECK(bench::words_of("  '/a b/c'  --x \"y z\"w '' ") == Words{"/a b/c", "--x", "y zw", ""});
  CHECK(bench::words_of("").empty());
}

TEST_CASE("what the user sets is not set again") {
  bench::Question q;
  q.model = "/dev/null";
  q.n_threads = 16;
  q.on_gpu = true;
  CHECK(bench::peer_command({"/bin/true"}, q) == Words{bench::absolute("/bin/true"), "-m", "/dev/null", "-t", "16", "-ctk", "f16", "-ctv",
                                                       "f16", "-ngl", "99", "-b", "2048", "-ub", "2048"});
  Words const own = bench::peer_command({"/bin/true", "--threads", "8", "-ngl", "8", "--n-cpu-moe", "30"}, q);
  CHECK(own == Words{bench::absolute("/bin/true"), "-m", "/dev/null", "-ctk", "f16", "-ctv", "f16", "-b", "2048", "-ub", "2048",
                     "--threads", "8", "-ngl", "8", "--n-cpu-moe", "30"});
}

TEST_CASE("a peer that is to compute on the CPU sees no GPU, and all else that it would") {
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  ::setenv("TIERED_TEST_WORD", "kept", 1);
  Words const command = {"/bin/sh", "-c", "echo \"<$CUDA_VISIBLE_DEVICES> $TIERED_TEST_WORD\""};
  CHECK(bench::output_of(command) == "<0> kept\n");
  CHECK(bench::output_of(command, STDOUT_FILENO, false) == "<> kept\n");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ::unsetenv("TIERED_TEST_WORD");
}

TEST_CASE("a child's lines arrive whole and in order") {
  std::vector<json> lines;
  std::string const error = bench::in_child(
      [](bench::Lines const& out) {
        out({{"kind", "a"}, {"text", std::string(100000, 'x')}});
        out.progress("half");
        out({{"kind", "b"}, {"text", "not \xff utf-8"}});
      },
      [&](json const& j) { lines.push_back(j); });
  CHECK(error.empty());
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].at("text").get<std::string>().size() == 100000);
  CHECK(lines[1].at("kind") == "progress");
}

TEST_CASE("a child that throws, crashes or leaves says how, after what it had said") {
  auto const ends = [](auto work) {
    int n = 0;
    std::string const error = bench::in_child([&](bench::Lines const& out) { out({{"kind", "x"}}), work(); }, [&](json const&) { ++n; });
    CHECK(n == 1);
    return error;
  };
  CHECK(ends([] { throw tiered::Error(tiered::Errc::device, "it is on fire"); }) == "it is on fire");
  CHECK(ends([] { ::raise(SIGKILL); }).find("signal 9") != std::string::npos);
  CHECK(ends([] { ::_exit(3); }).find("code 3") != std::string::npos);
}

TEST_CASE("no child is left where what it found cannot be written, or is no JSON") {
  auto const nobody_left = [] { return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD; };
  REQUIRE(nobody_left());
  tiered_test::TempDir const dir;
  auto const endless = [](bench::Lines const& out) {
    for (;;) out({{"kind", "x"}});
  };
  auto const written =
      tiered_test::error_of([&] { bench::in_child(endless, [&](json const& j) { bench::append_line(dir / "no/such/folder", j); }); });
  CHECK(written.code == tiered::Errc::io);
  CHECK(nobody_left());
  auto const waits = [](bench::Lines const& out) {
    out({{"what", "no kind"}});
    for (;;) ::pause();
  };
  CHECK_THROWS_AS(bench::in_child(waits, [](json const&) {}), json::exception);
  CHECK(nobody_left());
}
