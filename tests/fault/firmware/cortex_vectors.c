/* Vector table of the emulated board (QEMU's mps2-an385): the stack, and newlib's entry. */
extern void _start(void);

__attribute__((section(".vectors"), used)) void *const vectors[] = {(void *)0x20300000, (void *)_start};
