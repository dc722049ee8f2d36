// SPDX-License-Identifier: Apache-2.0

// Package share plans which agents of a group are awake. The agents of a group
// share room, such as the memory of one GPU, that cannot hold all of them at once.
//
// Make is a pure function: the caller describes agents, groups and the models that
// are wanted at one moment, and carries out the plan. It may be called at any time,
// and plans the same from the same facts.
//
// The rules:
//
//   - Models that requests wait for come first, in the order in which they came to
//     need room. Models that are only wished for follow.
//   - A model's agent is woken when its group has room. Room that was given to a model
//     is not given to one behind it.
//   - For a model that requests wait for, agents are closed, idle ones before busy
//     ones, each from its CloseFrom on. Those that the model does not need stay open.
//   - For a model that is only wished for, an agent is closed only when nobody waits
//     for it or wishes for it, and it has had no requests for Quiet.
package share
