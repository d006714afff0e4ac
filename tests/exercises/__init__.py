"""Right and typical wrong answers to every task, a module a chapter, and the test that runs them all."""
