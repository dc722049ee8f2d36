// SPDX-License-Identifier: Apache-2.0

// Package share plans which agents of a group are awake. The agents of a group
// share room, such as the memory of one GPU, that cannot hold all of them at once.
// Make is a pure function: the caller describes the agents, the groups and the models that
// are wanted at one moment, and carries out the plan. The same input gives the same plan,
// so Make may be called at any time.
// The rules:
//   - Models that requests wait for come first, in the order in which they came to
//     need room. Models that are wanted ahead of requests follow.
//   - A model's agent is woken when its group has room. Room that is reserved for a model
//     is not reserved for a later one.
//   - For a model that requests wait for, agents are closed, idle ones before busy
//     ones, but none before its CloseFrom. Agents that need not make room stay open.
//   - For a model that is wanted ahead of requests, an agent is closed only when none of
//     its models is wanted and it has had no requests for Quiet.
package share
