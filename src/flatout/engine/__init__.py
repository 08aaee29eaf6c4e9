"""One device's training. Given parts and Settings, it never sees a Recipe or a Plan."""
