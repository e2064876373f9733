/* A node in outline: loads a table, observes and decides in each scheduler step, and reloads the table on the way.
 *
 *   cargo build --release -p kvtide-capi
 *   cc -std=c11 -Iruntime/capi/include runtime/capi/examples/node.c target/release/libkvtide.a -lpthread -ldl -lm -o node
 *   ./node policy.kvt 100 next.kvt
 *
 * Two steps before the end the table is replaced by next.kvt, if that is valid. Prints a line per change of the controls, how
 * long the blocks of the request that is done at the end shall stay cached, then the counters.
 * Exits with 0, or with 2 if the table is refused at the start.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvtide.h"

enum { NUM_RUNNING = 4, INTERVAL = 1, NUM_WAITING = 2, POOL_BLOCKS = 1000, BLOCK_SIZE = 16, STEP_US = 25000 };

/* What a scheduler knows of its requests; here they only grow. */
static void step(uint64_t steps, const kvtide_slo *slo, kvtide_running_request *running,
                 kvtide_waiting_request *waiting) {
    for (uint32_t i = 0; i < NUM_RUNNING; i++) {
        const uint32_t generated = (uint32_t)steps + 10 * i;
        const uint32_t computed = 200 + generated;
        running[i] = (kvtide_running_request){
            .tokens = computed + 1,
            .computed_tokens = computed,
            .generated_tokens = generated,
            .held_blocks = (computed + BLOCK_SIZE - 1) / BLOCK_SIZE,
        };
        kvtide_deadline(slo, 0, generated, &running[i].deadline_us);
    }
    for (uint32_t i = 0; i < NUM_WAITING; i++) {
        waiting[i] = (kvtide_waiting_request){
            .tokens = 300,
            .arrival_us = 1000 * (uint64_t)i,
            .prefill_us = 40000,
        };
        kvtide_deadline(slo, waiting[i].arrival_us, 0, &waiting[i].first_token_deadline_us);
    }
}

/* What is said of the blocks of a request that is done: of those it found cached, and of those it computed. */
static void give_back(const kvtide_policy *policy, const kvtide_observation *observation, const kvtide_slo *slo,
                      uint64_t now_us, const kvtide_running_request *request) {
    const uint32_t head_blocks = 5;
    for (uint32_t part = KVTIDE_PART_HEAD; part <= KVTIDE_PART_TAIL; part++) {
        const int is_head = part == KVTIDE_PART_HEAD;
        const kvtide_release release = {
            .struct_size = sizeof release,
            .part = part,
            .stop = KVTIDE_STOP_END_OF_TURN,
            .turn = 1,
            .block_size = BLOCK_SIZE,
            .num_gpu_blocks = POOL_BLOCKS,
            .prompt_tokens = request->tokens - request->generated_tokens,
            .hit_tokens = head_blocks * BLOCK_SIZE,
            .generated_tokens = request->generated_tokens,
            .part_blocks = is_head ? head_blocks : request->held_blocks - head_blocks,
            .depth_blocks = is_head ? 0 : head_blocks,
            .asked_evicted = KVTIDE_UNKNOWN,
            .kind_return_us = KVTIDE_UNKNOWN,
            .last_return_us = KVTIDE_UNKNOWN,
            .ttft_target_us = slo->ttft_us,
        };
        kvtide_retained retained = {.struct_size = sizeof retained};
        /* Whatever the status is: the class is safe to obey. */
        if (kvtide_retention_decide(policy, observation, &release, now_us, &retained) != KVTIDE_STATUS_OK) {
            fprintf(stderr, "node: %s\n", kvtide_last_error());
        }
        printf("%s of %" PRIu32 " blocks given back: retention %" PRIu32 ", fallback %" PRIu32 "\n", is_head ? "head" : "tail",
               release.part_blocks, retained.retention, retained.fallback);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: node TABLE STEPS NEXT_TABLE\n");
        return 2;
    }
    const uint64_t num_steps = strtoull(argv[2], NULL, 10);

    kvtide_options options;
    kvtide_policy *policy = NULL;
    if (kvtide_options_default(&options, sizeof options, KVTIDE_ABI_VERSION) != KVTIDE_STATUS_OK) {
        fprintf(stderr, "node: %s\n", kvtide_last_error());
        return 2;
    }
    options.honoured_profile = KVTIDE_PROFILE_CORE; /* this node keeps its own admission order */
    options.fallback_watermark = 0.02;
    if (kvtide_policy_open(argv[1], &options, &policy) != KVTIDE_STATUS_OK) {
        fprintf(stderr, "node: %s\n", kvtide_last_error());
        return 2;
    }
    kvtide_slo slo;
    kvtide_cadence *cadence = NULL;
    if (kvtide_slo_parse("ttft:2000,tpot:100,stall:3000", &slo) != KVTIDE_STATUS_OK ||
        kvtide_cadence_new(&cadence) != KVTIDE_STATUS_OK) {
        fprintf(stderr, "node: %s\n", kvtide_last_error());
        return 2;
    }
    printf("kvtide %s, ABI %" PRIu32 "\n", kvtide_version(), kvtide_abi_version());

    kvtide_controls before = {.struct_size = sizeof before, .watermark = -1};
    for (uint64_t steps = 1; steps <= num_steps; steps++) {
        kvtide_running_request running[NUM_RUNNING];
        kvtide_waiting_request waiting[NUM_WAITING];
        step(steps, &slo, running, waiting);
        /* Nothing is refused here, so a decision is due every INTERVAL steps. */
        uint32_t due = 0;
        kvtide_cadence_stepped(cadence, INTERVAL, 0, &due);
        if (!due) {
            continue;
        }

        /* A node does this on another thread, when it is told to or when a file has changed. */
        if (steps + 2 == num_steps && kvtide_policy_reload(policy, argv[3]) != KVTIDE_STATUS_OK) {
            printf("step %" PRIu64 ": kept the table: %s\n", steps, kvtide_last_error());
        }

        uint32_t held = 0;
        for (uint32_t i = 0; i < NUM_RUNNING; i++) {
            held += running[i].held_blocks;
        }
        const kvtide_snapshot snapshot = {
            .struct_size = sizeof snapshot,
            .block_size = BLOCK_SIZE,
            .now_us = STEP_US * steps,
            .num_gpu_blocks = POOL_BLOCKS,
            .free_gpu_blocks = POOL_BLOCKS - held * 10,
            .waiting = NUM_WAITING,
            .max_num_seqs = 256,
            .max_num_batched_tokens = 8192,
            .ttft_target_us = slo.ttft_us,
            .tpot_target_us = slo.tpot_us,
            .total_steps = steps,
            .total_arrivals = NUM_RUNNING + NUM_WAITING,
        };
        kvtide_observation observation = {.struct_size = sizeof observation};
        kvtide_controls controls = {.struct_size = sizeof controls};
        if (kvtide_policy_observe(policy, &snapshot, running, NUM_RUNNING, waiting, NUM_WAITING, &observation) !=
            KVTIDE_STATUS_OK) {
            fprintf(stderr, "node: %s\n", kvtide_last_error());
        }
        /* Whatever the status is: the controls are safe to obey. */
        if (kvtide_policy_decide(policy, &observation, snapshot.now_us, NULL, &controls) != KVTIDE_STATUS_OK) {
            fprintf(stderr, "node: %s\n", kvtide_last_error());
        }
        /* Who would go now if blocks ran out. */
        size_t victim = 0;
        kvtide_choose_victim(controls.victim, running, NUM_RUNNING, &victim);
        if (controls.watermark != before.watermark || controls.fallback != before.fallback) {
            printf("step %" PRIu64 ": free %.3f, leave %.2f of the pool free, victim %" PRIu32 " (request %zu), preemption %" PRIu32
                   ", fallback %" PRIu32 "\n",
                   steps, (double)observation.values[0], controls.watermark, controls.victim, victim,
                   controls.preemption, controls.fallback);
        }
        before = controls;
        if (steps == num_steps) {
            give_back(policy, &observation, &slo, snapshot.now_us, &running[0]);
        }
    }

    kvtide_counters counters = {.struct_size = sizeof counters};
    if (kvtide_policy_counters(policy, &counters) != KVTIDE_STATUS_OK) {
        fprintf(stderr, "node: %s\n", kvtide_last_error());
    }
    printf("decisions %" PRIu64 ", table %" PRIu64 ", no_table %" PRIu64 ", unknown_schema %" PRIu64 ", stale %" PRIu64
           ", non_finite %" PRIu64 ", out_of_range %" PRIu64 ", failed %" PRIu64 "\n",
           counters.decisions, counters.table_decisions, counters.no_table, counters.unknown_schema, counters.stale,
           counters.non_finite, counters.out_of_range, counters.failed);
    printf("loads: accepted %" PRIu64 ", unreadable %" PRIu64 ", invalid %" PRIu64 ", unknown_schema %" PRIu64
           ", unfit_profile %" PRIu64 "\n",
           counters.loads_accepted, counters.loads_unreadable, counters.loads_invalid, counters.loads_unknown_schema,
           counters.loads_unfit_profile);
    kvtide_cadence_free(cadence);
    kvtide_policy_free(policy);
    return 0;
}
