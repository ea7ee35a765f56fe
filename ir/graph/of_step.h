/* of_step.h: how an argument of @statistics is called that is a statistic's sum over all
 * micro-batches of a step. */
#ifndef SBP_IR_GRAPH_OF_STEP_H
#define SBP_IR_GRAPH_OF_STEP_H

/* SBP_OF_STEP and the statistic's name; a vector in fp64. Entry `count` of a program adds to it before a step
 * is trained on: a result that is no output (runtime/train/trainer.c). */
#define SBP_OF_STEP "step."

#endif
