/// The part of --help that no list of flags can say.
#pragma once

namespace app {

inline constexpr char const* help_footer = R"(
EXAMPLES
  tiered-run -m model.gguf
      a conversation, where the model has a template for one
  tiered-run -m model.gguf -p "Once upon a time" -n 100
      everything on the CPU; the text goes to stdout, all else to stderr
  tiered-run -m model.gguf --chat -p "What is gravity?" --temp 0
      one question to an instruction-tuned model, always the same answer
  tiered-run -m model.gguf --mmproj mmproj.gguf --image photo.jpg -p "What is this?" --vram 2G
      a question about an image, to a vision-language model
  tiered-run -m model.gguf --vram 2G --plan
      what would be done within 2 GiB; reads no weights, takes a moment
  tiered-run -m model.gguf --vram 2G --stats -f prompt.txt > answer.txt
      and doing it
  tiered-run -m model.gguf -p "Yes or no?" -n 1 --json --logprobs 5
      one JSON object on stdout: text, tokens, times, memory; errors too

CONVERSATIONS
  A line is a message; one that ends with a backslash goes on in the next, and so does what is pasted. /help lists the commands.
  Ctrl-C stops an answer, which stays in the conversation as far as it came; at an empty prompt it ends the program, as Ctrl-D does.
  What was typed is kept in ~/.local/state/tiered/history.

IMAGES AND VIDEOS
  Qwen2-VL, Qwen2.5-VL, Qwen3-VL and their like, with the projector that belongs to the model. -p is a question then;
  with -no-cnv it is a text, in which <|vision_start|><|image_pad|><|vision_end|> stands for each image, or they come
  before it. In a conversation /image FILE attaches one to the next message, as --image does to the first; such marks in
  a message are words. Images are shown to the model at their own size, within --image-min-tokens and
  --image-max-tokens; what was encoded once is kept. A folder's images are frames of a video, taken --video-fps a
  second.

STATE BETWEEN RUNS
  --session FILE goes on: a prompt comes behind the text that FILE has, unless it begins with that text. --prompt-cache FILE, as in
  llama.cpp, saves the reading of what the prompt and FILE begin with; the rest of FILE is replaced. A conversation has its messages in
  FILE.json. Only files that are such files already (or empty) are written over; through a link, the file behind it. A full context ends
  a text; with --context-shift a text forgets its middle, a conversation its oldest turns.

THE BUDGET
  --vram says how much memory of the device may be taken: weights, KV cache, buffers, all of it, at every moment. What does not
  fit is copied there for each use, behind the computation, or computed by the CPU, whatever the plan estimates to be fastest. The
  budget changes speed, never the text. SIZE is a number with K, M, G or T (powers of 1024): 512M, 2G, 1.5GiB.
  On an NVIDIA GPU the budget is what nvidia-smi shows for this process, the CUDA context included; without --vram it is what is free
  at the start, less 512M. --device none leaves the GPU alone. Where there is no GPU, --vram simulates one: its memory is a part of
  this machine's that can hold no more than the budget; it computes with the CPU, so it is no faster than running without it. It is
  there to look at plans, to test placements, and to learn. Times in its plans are those of a made-up machine; a GPU, its link and this
  machine's memory are measured at the first start, which takes 3 s more: ~/.cache/tiered has the figures, tiered-plan --hardware prints
  them. There, too, is how often each expert of a mixture was used, so that the next start begins with those in VRAM;
  --no-expert-prior does without.

EXIT CODES
  0    done                           4    the file is fine, but this program cannot run it
  1    failed while running           5    does not fit: the budget, the context, the memory
  2    wrong command line             130  interrupted by Ctrl-C; the text so far is kept (143: by
  3    a file is missing or damaged                SIGTERM, 129: by SIGHUP)
Outside of a conversation a first Ctrl-C stops cleanly, a second one at once.
)";

}  // namespace app
