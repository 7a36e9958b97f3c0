int headers_unit_1();
int headers_unit_2();

int main() { return headers_unit_1() + headers_unit_2() == 3 ? 0 : 1; }
