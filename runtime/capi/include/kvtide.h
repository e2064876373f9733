/* The C interface of kvtide: decision tables for a node that serves.
 *
 * Generated from runtime/capi/src; do not edit. Licensed under MIT or Apache-2.0, at your choice.
 *
 * A node opens a policy, and in each scheduler step it cares about
 *   1. fills a kvtide_snapshot with what its scheduler knows      -> kvtide_policy_observe
 *   2. asks for the controls of the moment                        -> kvtide_policy_decide
 * and when a request gives blocks back whose content stays cached
 *   3. fills a kvtide_release and asks how long it shall          -> kvtide_retention_decide
 *      (kvtide_reuse_describe knows what a node does not: who came before, and who comes back)
 * What a decision means is in the library too, so that it means on the node what it meant where the table was trained:
 *   kvtide_cadence_stepped (when to decide), kvtide_queue_next (who is admitted), kvtide_choose_victim (who is
 *   preempted), kvtide_swaps (how), kvtide_deadline and kvtide_prefill_us (what an observation is made of).
 * Whenever the table cannot be trusted, the controls are the fallback the node chose, and a counter says why.
 *
 * Rules that hold for every function:
 *   - Null is refused, never followed. No function aborts, unwinds into C, or prints, but for a bug in kvtide itself,
 *     which is reported as KVTIDE_STATUS_INTERNAL and on stderr.
 *   - A struct that begins with struct_size must say its sizeof there, and a policy is opened with KVTIDE_ABI_VERSION: a
 *     program and a library that do not fit are refused with KVTIDE_STATUS_ABI before anything is read or written.
 *   - Fields called reserved must be 0.
 *   - What went wrong last on a thread is told by kvtide_last_error.
 *   - Times are microseconds, counts are of blocks, tokens or requests.
 *
 * Threads: one thread observes and decides. Any other may reload, withdraw and read counters meanwhile; the one that
 * decides never waits for it. A queue, a cadence or a reuse is for one thread at a time. Freeing is for when nobody uses it any
 * more.
 */

#ifndef KVTIDE_H
#define KVTIDE_H

#include <stddef.h>
#include <stdint.h>

// Version of the structs and functions in this header. Grows whenever a program built against an older header would
// misread or be misread.
#define KVTIDE_ABI_VERSION 3

// Values of an observation.
#define KVTIDE_NUM_FEATURES 35

// Words of a mask, one a head: watermark, victim, preemption, admission.
#define KVTIDE_NUM_HEADS 6

// How many waiting requests are looked at from the front of the queue.
#define KVTIDE_WAITING_WINDOW 16

// How many waiting requests are looked at from the back of the queue.
#define KVTIDE_NEWEST_WINDOW 64

// Most requests of a kind that one observation may count.
#define KVTIDE_MAX_REQUESTS 1048576

// The max_wait_us of kvtide_queue_new that tables are trained with.
#define KVTIDE_MAX_WAIT_US 5000000

// The patience of kvtide_queue_new that tables are trained with.
#define KVTIDE_PATIENCE 1.75

// The value of a count or a time that is not known.
#define KVTIDE_UNKNOWN UINT64_MAX

// What became of a call. Numbers are never given another meaning.
enum kvtide_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Done.
  KVTIDE_STATUS_OK = 0,
  // A pointer that must not be null is null.
  KVTIDE_STATUS_NULL_POINTER = 1,
  // An argument is out of its range.
  KVTIDE_STATUS_ARGUMENT = 2,
  // The program's header is not this library's.
  KVTIDE_STATUS_ABI = 3,
  // The file could not be read.
  KVTIDE_STATUS_IO = 4,
  // The bytes are not a sound table.
  KVTIDE_STATUS_TABLE = 5,
  // The table is sound, but made for another schema or action set.
  KVTIDE_STATUS_UNKNOWN_SCHEMA = 6,
  // The table decides heads that the node cannot act on.
  KVTIDE_STATUS_PROFILE = 7,
  // Another thread is observing or deciding with this policy, or using this queue, cadence or reuse.
  KVTIDE_STATUS_BUSY = 8,
  // A bug in kvtide. The policy may go on being used.
  KVTIDE_STATUS_INTERNAL = 9,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_status kvtide_status;
#else
typedef int32_t kvtide_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Order in which waiting requests are admitted.
enum kvtide_admission
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Queue order, as vLLM does.
  KVTIDE_ADMISSION_FCFS = 0,
  // Requests that can still meet their targets before those that cannot; queue order within each.
  KVTIDE_ADMISSION_ON_TIME_FIRST = 1,
  // As on-time-first, and among those on time the fewest tokens to compute first.
  KVTIDE_ADMISSION_SHORTEST_ON_TIME_FIRST = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_admission kvtide_admission;
#else
typedef uint32_t kvtide_admission;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How far the answer to a request is.
enum kvtide_answer
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // No token yet.
  KVTIDE_ANSWER_AWAITED = 0,
  // Its first token came too late.
  KVTIDE_ANSWER_LATE = 1,
  // Its first token was on time.
  KVTIDE_ANSWER_BEGUN = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_answer kvtide_answer;
#else
typedef uint32_t kvtide_answer;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The order in which cached blocks nobody uses are evicted within a class.
enum kvtide_eviction
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The one that was used least recently, as vLLM does.
  KVTIDE_EVICTION_LRU = 0,
  // The one that was used least often.
  KVTIDE_EVICTION_LFU = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_eviction kvtide_eviction;
#else
typedef uint32_t kvtide_eviction;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Why controls are the fallback.
enum kvtide_fallback
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // They are not: the table decided.
  KVTIDE_FALLBACK_NONE = 0,
  // There is no table.
  KVTIDE_FALLBACK_NO_TABLE = 1,
  // The table was made for another schema or action set.
  KVTIDE_FALLBACK_UNKNOWN_SCHEMA = 2,
  // The observation was too old.
  KVTIDE_FALLBACK_STALE = 3,
  // A value of the observation was NaN or infinite.
  KVTIDE_FALLBACK_NON_FINITE = 4,
  // A feature has been outside its trained range for too long, or not back inside for long enough.
  KVTIDE_FALLBACK_OUT_OF_RANGE = 5,
  // The call itself failed; its status and kvtide_last_error say why.
  KVTIDE_FALLBACK_FAILED = 6,
  // Of a retention class alone: the pool hits less than LRU would, says kvtide_retention_set_behind.
  KVTIDE_FALLBACK_BEHIND_LRU = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_fallback kvtide_fallback;
#else
typedef uint32_t kvtide_fallback;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which blocks of a request are decided about.
enum kvtide_part
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Those that were cached when it was first admitted.
  KVTIDE_PART_HEAD = 0,
  // Those it computed.
  KVTIDE_PART_TAIL = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_part kvtide_part;
#else
typedef uint32_t kvtide_part;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What happens to a victim's blocks.
enum kvtide_preemption
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Copied to the host and brought back later.
  KVTIDE_PREEMPTION_SWAP = 0,
  // Dropped and computed again.
  KVTIDE_PREEMPTION_RECOMPUTE = 1,
  // Whichever costs less for this victim.
  KVTIDE_PREEMPTION_CHEAPER = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_preemption kvtide_preemption;
#else
typedef uint32_t kvtide_preemption;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The heads a table decides, or a node can act on. Each has all heads of those before it.
enum kvtide_profile
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Watermark alone.
  KVTIDE_PROFILE_WATERMARK = 0,
  // Watermark, victim, preemption.
  KVTIDE_PROFILE_CORE = 1,
  // Everything a scheduler decides, with admission order and the tokens of a step.
  KVTIDE_PROFILE_FULL = 2,
  // Everything, with the order in which cached blocks go.
  KVTIDE_PROFILE_CACHE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_profile kvtide_profile;
#else
typedef uint32_t kvtide_profile;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How long blocks that a request gives back stay cached. Victims come from the lowest class that has any.
enum kvtide_retention
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // They go before everything else.
  KVTIDE_RETENTION_EVICT_FIRST = 0,
  // What every engine does with every block.
  KVTIDE_RETENTION_NORMAL = 1,
  // They stay while the pool turns over twice.
  KVTIDE_RETENTION_KEEP = 2,
  // They stay while the pool turns over eight times, and are kept for two more.
  KVTIDE_RETENTION_KEEP_LONG = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_retention kvtide_retention;
#else
typedef uint32_t kvtide_retention;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Why a request gives its blocks back.
enum kvtide_stop
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It was preempted, and will ask for them itself.
  KVTIDE_STOP_PREEMPTED = 0,
  // Its answer ended in a tool call.
  KVTIDE_STOP_TOOL_CALL = 1,
  // It finished, and nobody said how.
  KVTIDE_STOP_UNKNOWN = 2,
  // It reached the longest answer it was allowed.
  KVTIDE_STOP_LENGTH = 3,
  // Its answer ended by itself.
  KVTIDE_STOP_END_OF_TURN = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_stop kvtide_stop;
#else
typedef uint32_t kvtide_stop;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which running request is preempted when blocks run out.
enum kvtide_victim
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The tail of running, as vLLM does.
  KVTIDE_VICTIM_NEWEST = 0,
  // The request holding the fewest blocks; the newest of equals.
  KVTIDE_VICTIM_FEWEST_BLOCKS = 1,
  // The request holding the most blocks; the newest of equals.
  KVTIDE_VICTIM_MOST_BLOCKS = 2,
  // The request with the fewest generated tokens; the newest of equals.
  KVTIDE_VICTIM_LEAST_PROGRESS = 3,
  // The request whose next token deadline is furthest away; the newest of equals.
  KVTIDE_VICTIM_MOST_SLACK = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvtide_victim kvtide_victim;
#else
typedef uint32_t kvtide_victim;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// When a decision is due. For one thread at a time.
typedef struct kvtide_cadence kvtide_cadence;

// A table under a guard, with the averages of its node.
typedef struct kvtide_policy kvtide_policy;

// A queue with the order of admission. For one thread at a time.
typedef struct kvtide_queue kvtide_queue;

// The memory of a node, of bounded size. For one thread at a time.
typedef struct kvtide_reuse kvtide_reuse;

// How a policy is opened. Fill with kvtide_options_default, then change what should differ.
typedef struct kvtide_options {
  // sizeof(kvtide_options).
  uint32_t struct_size;
  // KVTIDE_ABI_VERSION.
  uint32_t abi_version;
  // The heads this node can act on, a kvtide_profile. A table that decides others is refused. Default: watermark.
  uint32_t honoured_profile;
  // kvtide_victim without a table, and where the table does not decide it. Default: newest.
  uint32_t fallback_victim;
  // kvtide_preemption likewise. Default: recompute.
  uint32_t fallback_preemption;
  // kvtide_admission likewise. Default: fcfs.
  uint32_t fallback_admission;
  // kvtide_eviction likewise. Default: lru.
  uint32_t fallback_eviction;
  // 0.
  uint32_t reserved;
  // Fraction of the pool to leave free without a table, 0 to 1; clamped, NaN is 0. Default: 0.01.
  double fallback_watermark;
  // Most tokens of a step without a table, and where it does not decide that; clamped to 128 to 1,048,576, NaN is 128.
  // Default: 1,048,576, which is more than any engine's own.
  double fallback_budget;
  // An observation older than this is stale. Default: one second.
  uint64_t max_age_us;
  // How far outside its trained range a feature may be, as a fraction of the range's width. Default: 0.1.
  float range_tolerance;
  // The fallback begins at this many decisions in a row with a feature out of range. Default: 8.
  uint32_t out_of_range_decisions;
  // The table resumes at this many decisions in a row with every feature in range. Default: 32.
  uint32_t recovery_decisions;
  // What the table decided stays for at least this many decisions; 0 and 1 limit nothing. Default: 0.
  uint32_t hold_decisions;
} kvtide_options;

// What a scheduler knows at a decision point.
//
// The fields marked (R) are sums over the running requests and those marked (W) over the waiting queue. Pass the
// requests to kvtide_policy_observe and leave these 0, or fill them and pass none.
typedef struct kvtide_snapshot {
  // sizeof(kvtide_snapshot).
  uint32_t struct_size;
  // Tokens per block.
  uint32_t block_size;
  // Now, on any clock that does not go backwards.
  uint64_t now_us;
  // Size of the GPU pool, blocks.
  uint32_t num_gpu_blocks;
  // Free GPU blocks.
  uint32_t free_gpu_blocks;
  // Cached GPU blocks nobody uses.
  uint32_t evictable_blocks;
  // Size of the host pool, blocks; 0 without one.
  uint32_t num_cpu_blocks;
  // Free host blocks.
  uint32_t free_cpu_blocks;
  // (R) Blocks the running requests must still be given to decode 1, 8 and 32 more steps.
  uint32_t growth_blocks[3];
  // (R) Blocks held by the running requests.
  uint32_t held_blocks;
  // (R) Running requests.
  uint32_t running;
  // Waiting requests, all of them.
  uint32_t waiting;
  // Swapped requests.
  uint32_t swapped;
  // Most requests that may run at once.
  uint32_t max_num_seqs;
  // Most tokens a step may compute.
  uint32_t max_num_batched_tokens;
  // (W) Blocks the head of waiting asks for.
  uint32_t head_blocks;
  // (W) Tokens the head of waiting asks for.
  uint32_t head_tokens;
  // (W) How many of the first 16 waiting requests have no token yet and are past their TTFT target.
  uint32_t late_waiting;
  // (W) How many of the newest 64 waiting requests have no token yet and can still get it by their TTFT target,
  // prefill included.
  uint32_t on_time_waiting;
  // (R) Running requests whose next token is past its deadline.
  uint32_t behind;
  // (R) Running requests that decode: their prompt is computed.
  uint32_t decodes;
  // (W) Blocks the first 16 waiting requests ask for.
  uint64_t waiting_blocks;
  // (W) Tokens the first 16 waiting requests ask for.
  uint64_t waiting_tokens;
  // (W) Longest time since arrival among the first 16 waiting requests that have no token yet.
  uint64_t oldest_wait_us;
  // (W) Blocks those asked for that are counted by on_time_waiting.
  uint64_t on_time_blocks;
  // (W) Least time among those by which the prefill may still be put off; 0 if there is none.
  uint64_t on_time_slack_us;
  // (R) Sum of (deadline of the next token - now).
  int64_t slack_sum_us;
  // (R) Tokens generated so far by the running requests.
  uint64_t generated_tokens;
  // (R) Prompt tokens the running requests have still to compute.
  uint64_t pending_prefill_tokens;
  // (R) Sum over those that decode of (deadline of the next token - now).
  int64_t decode_slack_sum_us;
  // (R) Least (deadline of the next token - now) of those; of no meaning without any.
  int64_t least_decode_slack_us;
  // TTFT target.
  uint64_t ttft_target_us;
  // TPOT target.
  uint64_t tpot_target_us;
  // Since the scheduler started: scheduler steps. This and the following only grow.
  uint64_t total_steps;
  // Since then: steps in which an admission was refused.
  uint64_t total_refused_steps;
  // Since then: requests that arrived.
  uint64_t total_arrivals;
  // Since then: prompt tokens that arrived.
  uint64_t total_arrived_prompt_tokens;
  // Since then: requests that finished.
  uint64_t total_completions;
  // Since then: output tokens of the requests that finished.
  uint64_t total_completed_output_tokens;
  // Since then: preemptions.
  uint64_t total_preemptions;
  // Since then: blocks swapped in or out.
  uint64_t total_swapped_blocks;
  // Since then: tokens given to requests in all steps, decodes' included.
  uint64_t total_tokens;
} kvtide_snapshot;

// What a node knows of a running request.
typedef struct kvtide_running_request {
  // Prompt tokens plus those generated so far.
  uint32_t tokens;
  // Tokens whose keys and values exist.
  uint32_t computed_tokens;
  // Tokens generated so far.
  uint32_t generated_tokens;
  // GPU blocks it holds.
  uint32_t held_blocks;
  // By when its next token is on time: arrival + TTFT target + generated tokens x TPOT target.
  uint64_t deadline_us;
} kvtide_running_request;

// What a node knows of a waiting request.
typedef struct kvtide_waiting_request {
  // Tokens it has: the prompt, and after a preemption those generated as well.
  uint32_t tokens;
  // Not 0 if it has had its first token, before a preemption.
  uint32_t had_first_token;
  // When it arrived.
  uint64_t arrival_us;
  // By when its first token is on time; of no meaning once it has had it.
  uint64_t first_token_deadline_us;
  // How long it takes to compute its tokens.
  uint64_t prefill_us;
} kvtide_waiting_request;

// What a policy sees: the features in the order of the schema.
typedef struct kvtide_observation {
  // sizeof(kvtide_observation).
  uint32_t struct_size;
  // Each finite and within its range, if kvtide_policy_observe made them.
  float values[KVTIDE_NUM_FEATURES];
  // The snapshot's now_us.
  uint64_t taken_us;
} kvtide_observation;

// Which choices the engine can carry out right now: bit i of a head's word allows choice i. Bits beyond a head's
// choices mean nothing.
typedef struct kvtide_mask {
  // Watermark (20 choices), victim (5), preemption (3), admission (3), budget (9), eviction (2).
  uint32_t allowed[KVTIDE_NUM_HEADS];
} kvtide_mask;

// What a scheduler obeys until the next decision.
typedef struct kvtide_controls {
  // sizeof(kvtide_controls), set by the program.
  uint32_t struct_size;
  // Who is preempted, a kvtide_victim.
  uint32_t victim;
  // How, a kvtide_preemption.
  uint32_t preemption;
  // Who is admitted next, a kvtide_admission.
  uint32_t admission;
  // Fraction of the GPU pool admission must leave free, 0 to 1.
  double watermark;
  // Most tokens of a step; where it is more than the engine's own, that. Never fewer than decodes need.
  double budget;
  // In which order cached blocks go, a kvtide_eviction.
  uint32_t eviction;
  // Why these are the fallback, a kvtide_fallback; 0 if the table decided.
  uint32_t fallback;
} kvtide_controls;

// What happened since a policy was opened. A decision is counted once beside decisions, and a table offered once.
typedef struct kvtide_counters {
  // sizeof(kvtide_counters), set by the program.
  uint32_t struct_size;
  // 0.
  uint32_t reserved;
  // Decisions asked for, but those that failed.
  uint64_t decisions;
  // Decisions the table took.
  uint64_t table_decisions;
  // Fallbacks: there is no table.
  uint64_t no_table;
  // Fallbacks: the table was made for another schema or action set.
  uint64_t unknown_schema;
  // Fallbacks: the observation was too old.
  uint64_t stale;
  // Fallbacks: a value was NaN or infinite.
  uint64_t non_finite;
  // Fallbacks: outside the trained range.
  uint64_t out_of_range;
  // Calls to decide that failed; their controls were the fallback.
  uint64_t failed;
  // Tables taken.
  uint64_t loads_accepted;
  // Files that could not be read.
  uint64_t loads_unreadable;
  // Tables that were not sound.
  uint64_t loads_invalid;
  // Tables made for another schema or action set.
  uint64_t loads_unknown_schema;
  // Tables that decide heads the node cannot act on.
  uint64_t loads_unfit_profile;
  // Decisions of the table that hold_decisions held back; they count as the table's.
  uint64_t held;
} kvtide_counters;

// Targets of a request.
typedef struct kvtide_slo {
  // Time to first token.
  uint64_t ttft_us;
  // Mean time per output token after the first.
  uint64_t tpot_us;
  // Longest gap between two tokens.
  uint64_t stall_us;
} kvtide_slo;

// What a scheduler believes a preemption costs, nanoseconds.
typedef struct kvtide_pricing {
  // One block to or from the host.
  double swap_ns_per_block;
  // Prefill, per token.
  double prefill_ns_per_token;
  // Attention within a prefill, per token and token of context before it.
  double attention_ns_per_token_pair;
} kvtide_pricing;

// What admission order needs of a request that begins to wait.
typedef struct kvtide_candidate {
  // Whose; anything the program likes.
  uint64_t id;
  // When it arrived.
  uint64_t arrival_us;
  // Tokens to compute: the prompt, and after a preemption those generated as well.
  uint32_t tokens;
  // How far its answer is, a kvtide_answer.
  uint32_t answer;
  // When its latest token appeared; of no meaning unless its answer has begun.
  uint64_t last_token_us;
} kvtide_candidate;

// Who is to be admitted next.
typedef struct kvtide_next {
  // The seat kvtide_queue_push_back or _push_front gave.
  int64_t seat;
  // The candidate's id.
  uint64_t id;
} kvtide_next;

// What a node knows of a request that gives its blocks back, finished or preempted, and of one part of them. Asked at most
// twice a release: for the blocks that were cached when it was first admitted, and for those it computed.
typedef struct kvtide_release {
  // sizeof(kvtide_release).
  uint32_t struct_size;
  // Which of its blocks, a kvtide_part.
  uint32_t part;
  // Why, a kvtide_stop.
  uint32_t stop;
  // Turn of its session, from 1.
  uint32_t turn;
  // Tokens per block.
  uint32_t block_size;
  // Size of the GPU pool, blocks.
  uint32_t num_gpu_blocks;
  // Its prompt's tokens.
  uint32_t prompt_tokens;
  // How many of them were cached when it was first admitted.
  uint32_t hit_tokens;
  // Tokens it generated.
  uint32_t generated_tokens;
  // Blocks of the part.
  uint32_t part_blocks;
  // Blocks before the part.
  uint32_t depth_blocks;
  // Blocks of the part that another request holds.
  uint32_t shared_blocks;
  // Earlier requests that asked for the part's prefix, as far as is remembered.
  uint32_t asked;
  // Idle cached blocks above class normal.
  uint32_t kept_blocks;
  // Share of the releases of its tenant and stop that were asked for again, 0 to 1.
  float kind_reuse;
  // Cached blocks evicted per second, lately.
  float evicted_per_second;
  // Cached blocks evicted since the last of those that asked; KVTIDE_UNKNOWN without any.
  uint64_t asked_evicted;
  // How long it took until those of its kind were asked for again; KVTIDE_UNKNOWN if none was.
  uint64_t kind_return_us;
  // How long its own session took to come back with it; KVTIDE_UNKNOWN if it has not.
  uint64_t last_return_us;
  // Cached blocks evicted since it was admitted.
  uint64_t held_evicted;
  // TTFT target.
  uint64_t ttft_target_us;
} kvtide_release;

// How long the blocks stay cached.
typedef struct kvtide_retained {
  // sizeof(kvtide_retained), set by the program.
  uint32_t struct_size;
  // Their class, a kvtide_retention.
  uint32_t retention;
  // Why it is not the table's, a kvtide_fallback; 0 if it is. Then the class is normal.
  uint32_t fallback;
  // 0.
  uint32_t reserved;
} kvtide_retained;

// What happened to classes since a policy was opened. A decision is counted once beside decisions.
typedef struct kvtide_retained_counters {
  // sizeof(kvtide_retained_counters), set by the program.
  uint32_t struct_size;
  // 0.
  uint32_t reserved;
  // Decisions asked for, but those that failed.
  uint64_t decisions;
  // Decisions the table took.
  uint64_t table_decisions;
  // Of those: evict first.
  uint64_t evict_first;
  // Of those: normal.
  uint64_t normal;
  // Of those: keep.
  uint64_t keep;
  // Of those: keep long.
  uint64_t keep_long;
  // Normal, because there is no table, or it says nothing of retention.
  uint64_t no_table;
  // Normal, because what it says of retention is for another build.
  uint64_t unknown_schema;
  // Normal, because the observation was too old.
  uint64_t stale;
  // Normal, because a value was NaN or infinite.
  uint64_t non_finite;
  // Normal, because a value has been outside its trained range for too long.
  uint64_t out_of_range;
  // Normal, because the pool was behind LRU.
  uint64_t behind_lru;
  // Calls that failed; their class was normal.
  uint64_t failed;
} kvtide_retained_counters;

// A request that is admitted for the first time.
typedef struct kvtide_visitor {
  // sizeof(kvtide_visitor).
  uint32_t struct_size;
  // Full blocks of its prompt that a cache can have, which never has the last token: (prompt tokens - 1) / tokens per block.
  uint32_t asked_blocks;
  // How many of them were cached.
  uint32_t hit_blocks;
  // Blocks of the pool that nobody held before it took any.
  uint32_t free_blocks;
  // Any number that stands for its tenant.
  uint64_t kind;
  // Now, on any clock that does not go backwards.
  uint64_t now_us;
  // Cached blocks evicted since the pool was made.
  uint64_t evicted;
} kvtide_visitor;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The library's version, such as "0.1.0". Static.
const char *kvtide_version(void);

// The KVTIDE_ABI_VERSION the library was built with. A program is refused unless its own is the same.
uint32_t kvtide_abi_version(void);

// Hash of the meaning of an observation. Tables carry the one they were made for.
uint64_t kvtide_schema_hash(void);

// Hash of the meaning of an action. Tables carry the one they were made for.
uint64_t kvtide_action_set_hash(void);

// What went wrong in the last call on this thread that failed; empty if none did. One line, at most 511 bytes. Valid
// until the next call that fails on this thread, or the thread's end. Never null.
const char *kvtide_last_error(void);

// Fills options with defaults. Pass sizeof(kvtide_options) and KVTIDE_ABI_VERSION; nothing is written unless both
// are the library's own.
kvtide_status kvtide_options_default(struct kvtide_options *options, size_t struct_size, uint32_t abi_version);

// Makes a policy without a table: it falls back until kvtide_policy_reload takes one. For a node that must start
// whatever the state of its table.
//
// *policy is the new policy, to be freed with kvtide_policy_free, or null if the call fails.
kvtide_status kvtide_policy_new(const struct kvtide_options *options, struct kvtide_policy **policy);

// Opens the table in the file at path: read whole, validated, copied. The file is not needed afterwards.
//
// Fails with KVTIDE_STATUS_IO, _TABLE, _UNKNOWN_SCHEMA or _PROFILE if the table cannot be used. *policy is then null.
kvtide_status kvtide_policy_open(const char *path, const struct kvtide_options *options, struct kvtide_policy **policy);

// Opens the table in len bytes, which are copied. Otherwise as kvtide_policy_open.
kvtide_status kvtide_policy_from_bytes(const uint8_t *bytes,
                                       size_t len,
                                       const struct kvtide_options *options,
                                       struct kvtide_policy **policy);

// Frees a policy; null is none. Nobody may be using it.
void kvtide_policy_free(struct kvtide_policy *policy);

// Replaces the table by the one in the file at path, if that is valid as a whole and the node can act on it.
// Otherwise the table in use stays, the refusal is counted, and the status says why, as in kvtide_policy_open.
//
// For another thread than the one that decides, which never waits for it and has the new table at its next decision.
// Counters, averages and the memory of excursions go on. Write the file beside its place and rename it.
kvtide_status kvtide_policy_reload(const struct kvtide_policy *policy, const char *path);

// Replaces the table by the one in len bytes, as kvtide_policy_reload.
kvtide_status kvtide_policy_reload_bytes(const struct kvtide_policy *policy, const uint8_t *bytes, size_t len);

// Takes the table away: decisions fall back with KVTIDE_FALLBACK_NO_TABLE until another is taken. For another thread
// than the one that decides, as kvtide_policy_reload.
kvtide_status kvtide_policy_withdraw(const struct kvtide_policy *policy);

// Folds what the scheduler knows into the policy's averages and writes the observation of this moment.
//
// running are all running requests. waiting is the queue, front first; of a queue longer than 80 the first 16 and
// after them the last 64 are enough, as long as snapshot->waiting counts all. Either may be null with a count of 0;
// then what it would fill is taken from the snapshot. No allocation, no lock that is waited for.
kvtide_status kvtide_policy_observe(const struct kvtide_policy *policy,
                                    const struct kvtide_snapshot *snapshot,
                                    const struct kvtide_running_request *running,
                                    size_t num_running,
                                    const struct kvtide_waiting_request *waiting,
                                    size_t num_waiting,
                                    struct kvtide_observation *observation);

// Decides from an observation, at the time now_us on the snapshot's clock. mask may be null: everything is allowed.
// Every choice but a fallback watermark is allowed by the mask.
//
// controls are safe to obey whatever the status is, unless that is because controls itself is null or of the wrong
// size: a call that fails gets the fallback, or without a policy vLLM's defaults, with KVTIDE_FALLBACK_FAILED. No
// allocation, no lock that is waited for.
kvtide_status kvtide_policy_decide(const struct kvtide_policy *policy,
                                   const struct kvtide_observation *observation,
                                   uint64_t now_us,
                                   const struct kvtide_mask *mask,
                                   struct kvtide_controls *controls);

// Writes what happened since the policy was opened. For any thread, but not for the one that decides: it may wait for
// a reload that is just being taken.
kvtide_status kvtide_policy_counters(const struct kvtide_policy *policy, struct kvtide_counters *counters);

// Makes an empty queue for requests with these targets and prices. Whoever waited longer than max_wait_us, and than
// patience times the longest wait that first come, first served would have given anybody lately, comes first under every
// order; tables are trained with KVTIDE_MAX_WAIT_US and KVTIDE_PATIENCE.
//
// *queue is the new queue, to be freed with kvtide_queue_free, or null if the call fails.
kvtide_status kvtide_queue_new(const struct kvtide_slo *slo,
                               const struct kvtide_pricing *pricing,
                               uint64_t max_wait_us,
                               double patience,
                               struct kvtide_queue **queue);

// Frees a queue; null is none. Nobody may be using it.
void kvtide_queue_free(struct kvtide_queue *queue);

// A request arrives. *seat is its place, good until it leaves; seats ascend in queue order.
kvtide_status kvtide_queue_push_back(const struct kvtide_queue *queue,
                                     const struct kvtide_candidate *candidate,
                                     int64_t *seat);

// A preempted request returns, to the front.
kvtide_status kvtide_queue_push_front(const struct kvtide_queue *queue,
                                      const struct kvtide_candidate *candidate,
                                      int64_t *seat);

// Writes who is to be admitted next under the kvtide_admission in force, and to *found whether there is anybody. Takes
// time logarithmic in the queue; the first call with another order than fcfs takes linear time.
kvtide_status kvtide_queue_next(const struct kvtide_queue *queue,
                                uint32_t admission,
                                uint64_t now_us,
                                struct kvtide_next *next,
                                uint32_t *found);

// Takes a request out because it is admitted.
kvtide_status kvtide_queue_admit(const struct kvtide_queue *queue, int64_t seat, uint64_t now_us);

// Takes a request out that is not admitted: cancelled, or refused for good.
kvtide_status kvtide_queue_remove(const struct kvtide_queue *queue, int64_t seat);

// A waiting request has so many tokens to compute now: of an asynchronous engine, one was on its way when the request
// was preempted.
kvtide_status kvtide_queue_lengthen(const struct kvtide_queue *queue, int64_t seat, uint32_t tokens);

// Decides how long the blocks of a part stay cached that a request gives back, at the time now_us. observation is the
// node's last one, of kvtide_policy_observe. For the thread that decides.
//
// A table need not say anything of retention: then everything is normal, which is what every engine does, and so it is
// whenever the table cannot be trusted. What a class means is for the node to do: victims come from the lowest class that
// has any, least recently used first; keep lasts for as many evicted blocks as 2 pools have, keep-long for 8 and then 2
// more as keep, after which a block is the most recent of the class below. No block has less than what continues it.
//
// retained is safe to obey whatever the status is, unless that is because retained itself is null or of the wrong size: a
// call that fails says normal, with KVTIDE_FALLBACK_FAILED. No allocation, no lock that is waited for.
kvtide_status kvtide_retention_decide(const struct kvtide_policy *policy,
                                      const struct kvtide_observation *observation,
                                      const struct kvtide_release *release,
                                      uint64_t now_us,
                                      struct kvtide_retained *retained);

// Says whether the pool hits less than it would if the least recently used block went first (is_behind is not 0). While it
// does everything is normal, and what has a class already should be treated as if it had none. For the thread that decides.
kvtide_status kvtide_retention_set_behind(const struct kvtide_policy *policy,
                                          uint32_t is_behind);

// Writes what happened to classes since the policy was opened. For any thread.
kvtide_status kvtide_retention_counters(const struct kvtide_policy *policy, struct kvtide_retained_counters *counters);

// Makes the memory of a node with so many GPU blocks. *reuse is to be freed with kvtide_reuse_free, or null if the call fails.
kvtide_status kvtide_reuse_new(uint32_t num_gpu_blocks,
                               struct kvtide_reuse **reuse);

// Frees a memory; null is none. Nobody may be using it.
void kvtide_reuse_free(struct kvtide_reuse *reuse);

// A request is admitted for the first time. keys are those by which its asked_blocks are found, in their order: hashes of all
// text up to the end of each; blocks behind the last key are like nobody else's. Writes to *visit the number by which it is
// told of from now on, until kvtide_reuse_left.
kvtide_status kvtide_reuse_admitted(const struct kvtide_reuse *reuse,
                                    const uint64_t *keys,
                                    size_t num_keys,
                                    const struct kvtide_visitor *visitor,
                                    uint32_t *visit);

// A request that was preempted is admitted again. keys are those of the full blocks it asks for.
kvtide_status kvtide_reuse_resumed(const struct kvtide_reuse *reuse,
                                   uint32_t visit,
                                   const uint64_t *keys,
                                   size_t num_keys,
                                   uint64_t now_us);

// A request gives its blocks back, finished or preempted; stop is a kvtide_stop. keys are those of all its full blocks, what it
// generated included. Tell this before its parts are described.
kvtide_status kvtide_reuse_released(const struct kvtide_reuse *reuse,
                                    uint32_t visit,
                                    uint32_t stop,
                                    const uint64_t *keys,
                                    size_t num_keys,
                                    uint64_t now_us,
                                    uint64_t evicted);

// Fills in what is remembered for the release->part of a request that stops for release->stop, once evicted cached blocks
// have been evicted: turn, asked, asked_evicted, kind_reuse, kind_return_us, last_return_us, held_evicted and
// evicted_per_second. The other fields stay.
kvtide_status kvtide_reuse_describe(const struct kvtide_reuse *reuse,
                                    uint32_t visit,
                                    uint64_t evicted,
                                    struct kvtide_release *release);

// A request has left for good; its number may be given again.
kvtide_status kvtide_reuse_left(const struct kvtide_reuse *reuse, uint32_t visit);

// Writes whether the pool hits less than it would if the least recently used block went first, by more than may be lost:
// what kvtide_retention_set_behind wants to know after every admission.
kvtide_status kvtide_reuse_is_behind(const struct kvtide_reuse *reuse,
                                     uint32_t *is_behind);

// Reads targets: the name of a class ("chat"), or "ttft:2000,tpot:100,stall:3000" in milliseconds; what is left out
// keeps that default. The "slo" in a table's metadata is such a text, or several with "; " between them,
// the first of which is what the table was trained for above all.
kvtide_status kvtide_slo_parse(const char *text, struct kvtide_slo *slo);

// Writes by when token index (from 0) of a request that arrived at arrival_us is on time: what
// kvtide_running_request.deadline_us is for the next token.
kvtide_status kvtide_deadline(const struct kvtide_slo *slo, uint64_t arrival_us, uint32_t index, uint64_t *deadline_us);

// Writes how long it takes to compute so many tokens: kvtide_waiting_request.prefill_us.
kvtide_status kvtide_prefill_us(const struct kvtide_pricing *pricing, uint32_t tokens, uint64_t *prefill_us);

// Writes whether a victim with so many blocks and computed tokens is copied to the host (1), which has room for it, or
// computed again (0), under the kvtide_preemption in force.
kvtide_status kvtide_swaps(const struct kvtide_pricing *pricing,
                           uint32_t preemption,
                           uint32_t blocks,
                           uint32_t tokens,
                           uint32_t *swaps);

// Writes which of the candidates is preempted under the kvtide_victim in force. They are the running requests that have
// not had their turn in the step, in running order, at least one of them; index is into the array.
kvtide_status kvtide_choose_victim(uint32_t victim,
                                   const struct kvtide_running_request *candidates,
                                   size_t num_candidates,
                                   size_t *index);

// Makes a count of steps. *cadence is to be freed with kvtide_cadence_free, or null if the call fails.
kvtide_status kvtide_cadence_new(struct kvtide_cadence **cadence);

// Frees a count of steps; null is none. Nobody may be using it.
void kvtide_cadence_free(struct kvtide_cadence *cadence);

// A step was planned; refused is not 0 if in it an admission, a swap-in or a running request's growth was refused. Writes
// to *due whether to decide before the next one: after interval steps, or at the first refusal after a step without. What
// is due is taken to be done.
kvtide_status kvtide_cadence_stepped(const struct kvtide_cadence *cadence,
                                     uint32_t interval,
                                     uint32_t refused,
                                     uint32_t *due);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVTIDE_H */
